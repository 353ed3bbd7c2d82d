// A bot with grammY's runner, and its sessions in Redis: node bot.mjs API TOKEN REDIS_PORT
import { RedisAdapter } from "@grammyjs/storage-redis";
import { run, sequentialize } from "@grammyjs/runner";
import { Bot, session } from "grammy";
import { Redis } from "ioredis";

const [api, token, port] = process.argv.slice(2);

process.on("SIGUSR2", () => {
  const { user, system } = process.cpuUsage();
  console.log((user + system) / 1e6);
});

const bot = new Bot(token, { client: { apiRoot: api } });
const chat = (ctx) => String(ctx.chat.id);
bot.use(sequentialize(chat));
bot.use(
  session({
    getSessionKey: chat,
    initial: () => ({ state: null, n: 0 }),
    storage: new RedisAdapter({ instance: new Redis(Number(port)) }),
  }),
);

const step = async (ctx, to) => {
  ctx.session.n += 1;
  ctx.session.state = to;
  await ctx.reply(String(ctx.session.n));
};

bot.filter((ctx) => ctx.session.state === "a", (ctx) => step(ctx, "b"));
bot.use((ctx) => step(ctx, "a"));
run(bot);
