// A page with the real useChat. "?plain" lets useChat make the chat; then a lost connection is regenerated.
import { Chat, useChat } from "@ai-sdk/react";
import { DefaultChatTransport, lastAssistantMessageIsCompleteWithApprovalResponses } from "ai";
import { useEffect, useState } from "react";
import { createRoot } from "react-dom/client";

const api = "/chat/api";
const plain = location.search === "?plain";
const id = "main";
const init = {
  id,
  messages: await (await fetch(`${api}/${id}/messages`)).json(),
  transport: new DefaultChatTransport({ api }),
  sendAutomaticallyWhen: lastAssistantMessageIsCompleteWithApprovalResponses,
};
const options = plain ? init : { chat: new Chat(init) };
const stop = () => fetch(`${api}/${id}/stop`, { method: "POST", headers: { "Content-Type": "application/json" }, body: "{}" });

function Part({ part, decide }) {
  if (part.type === "text") return <span className="text">{part.text}</span>;
  if (!part.type.startsWith("tool-")) return null;
  return (
    <code data-state={part.state}>
      {part.type} {JSON.stringify(part.input)} {JSON.stringify(part.output ?? null)} {part.errorText}
      {part.state === "approval-requested" && <>
        <button onClick={() => decide({ id: part.approval.id, approved: true })}>Approve</button>
        <button onClick={() => decide({ id: part.approval.id, approved: false })}>Deny</button>
        <button onClick={() => decide({ id: part.approval.id, approved: true, reason: part.input.options.at(-1) })}>Last</button>
      </>}
    </code>
  );
}

function App() {
  const chat = useChat({ ...options, resume: true });
  const [text, setText] = useState("");
  const { status, error } = chat;
  useEffect(() => {
    if (status !== "error" || !error) return;
    window.failures = [...(window.failures ?? []), String(error)];
    const timer = setTimeout(() => (plain ? chat.regenerate() : chat.resumeStream()), 300);
    return () => clearTimeout(timer);
  }, [status, error]);
  return (
    <main data-status={status}>
      <ol>{chat.messages.map((message) => (
        <li key={message.id} className={message.role}>{message.parts.map((part, at) => <Part key={at} part={part} decide={chat.addToolApprovalResponse} />)}</li>
      ))}</ol>
      <form onSubmit={(event) => { event.preventDefault(); chat.sendMessage({ text }); setText(""); }}>
        <input aria-label="Message" value={text} onChange={(event) => setText(event.target.value)} />
      </form>
      <button onClick={stop}>Stop</button>
    </main>
  );
}

createRoot(document.getElementById("root")).render(<App />);
