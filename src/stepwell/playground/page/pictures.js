// Pictures and files that a user sends: chosen or pasted. Pictures are reduced as Telegram does.
import { act, el, svg, toast } from "./dom.js";

const LARGEST = 1280, QUALITY = 0.87, MOST = 10;

async function reduced(file) {
  const image = await createImageBitmap(file);
  const scale = Math.min(1, LARGEST / Math.max(image.width, image.height));
  const canvas = el("canvas", { width: Math.max(1, Math.round(image.width * scale)), height: Math.max(1, Math.round(image.height * scale)) });
  const context = canvas.getContext("2d");
  context.fillStyle = "#fff";
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(image, 0, 0, canvas.width, canvas.height);
  return canvas.toDataURL("image/jpeg", QUALITY).split(",")[1];
}

async function sendFile(target, file, text) {
  const content = await new Promise((done, failed) => {
    const reader = new FileReader();
    reader.onload = () => done(reader.result.split(",")[1] ?? "");
    reader.onerror = () => failed(reader.error);
    reader.readAsDataURL(file);
  });
  return act("send_file", { ...target, content, name: file.name, text });
}

// Returns whether they were sent. The text is the caption of the first one.
export async function sendFiles(target, files, text) {
  const pictures = [...files].filter((each) => each.type.startsWith("image/")), others = [...files].filter((each) => !pictures.includes(each));
  if (pictures.length && !await sendPictures(target, pictures, text)) return false;
  for (const [number, file] of others.entries()) if (!await sendFile(target, file, pictures.length || number ? "" : text)) return false;
  return true;
}

async function sendPictures(target, files, text) {
  if (files.length > MOST) { toast(`An album has at most ${MOST} pictures.`, "bad"); return false; }
  let photos;
  try { photos = await Promise.all(files.map(reduced)); } catch { toast("A file is no picture that this browser can read.", "bad"); return false; }
  return Boolean(await act("send_photos", { ...target, photos, text }));
}

// A button that opens the file dialog, and calls work with the chosen files.
export function fileButton(work) {
  const input = el("input", { type: "file", multiple: true, class: "hidden", tabindex: "-1", "aria-hidden": "true", onchange: async () => { const { files } = input; if (files.length) await work(files); input.value = ""; } });
  const icon = svg("svg", { viewBox: "0 0 24 24", width: "20", height: "20", "aria-hidden": "true" }, svg("path", { d: "M3 6a2 2 0 0 1 2-2h14a2 2 0 0 1 2 2v12a2 2 0 0 1-2 2H5a2 2 0 0 1-2-2zM3 17l5-5 4 4 4-5 5 6M8.5 8.5h.01", fill: "none", stroke: "currentColor", "stroke-width": "1.8", "stroke-linecap": "round", "stroke-linejoin": "round" }));
  return [el("button", { type: "button", class: "quiet attach", "aria-label": "Send pictures or files", title: "Send pictures or files; several pictures at once are an album. Or paste one", onclick: () => input.click() }, icon), input];
}
