import { markdown } from "./markdown.js";
import { chats, newChat, saveChats, saveSettings, settings } from "./store.js";

const $ = (id) => document.getElementById(id);
const make = (name, properties = {}, ...children) => {
  const node = Object.assign(document.createElement(name), properties);
  node.append(...children);
  return node;
};
const button = (text, title, onclick) => make("button", { type: "button", className: "plain", title, onclick }, text);

/** Numbers of the settings that requests have under the same names. */
const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "max_tokens", "seed"];
const TEXTS = ["system", "schema", "key"];
/** The most characters of an attached file. */
const MAX_FILE = 1_000_000;

let chat = chats[0] ?? newChat();
let files = [];
/** Ends the reply that is being written; null: there is none. */
let running = null;
/** The model's name, and whether it is a chat model. */
let model = { name: null, chats: true };

const headers = () => (settings.key ? { authorization: `Bearer ${settings.key}` } : {});

async function get(path) {
  const answer = await (await fetch(`.${path}`, { headers: headers() })).json();
  if (answer.error) throw new Error(answer.error.message);
  return answer;
}

/** Shows which model answers, and a choice if there are several. A model that is chosen is loaded. */
async function describe() {
  const chosen = settings.model;
  try {
    // Aliases are other names of the same models.
    const names = (await get("/v1/models")).data.filter((one) => one.id === one.root).map((one) => one.id);
    const name = names.includes(chosen) ? chosen : names[0];
    $("models").replaceChildren(...names.map((own) => make("option", { value: own, selected: own === name }, own)));
    $("models").hidden = names.length < 2;
    model = { name, chats: true };
    if (names.length > 1) $("model").textContent = "loading …";
    const props = await get(`/props?model=${encodeURIComponent(name)}`);
    // Another one was chosen meanwhile.
    if (settings.model !== chosen) return;
    model = { name, chats: Boolean(props.chat_template) };
    $("model").textContent = [names.length < 2 ? name : "", model.chats ? "" : "(continues texts)"].join(" ").trim();
    $("input").placeholder = model.chats ? "Message" : "Text to continue";
  } catch (error) {
    if (settings.model === chosen) $("model").textContent = error.message;
  }
}

// --- The list of chats

function showChats() {
  $("chats").replaceChildren(...chats.map((one) => {
    const name = button(one.title, one.title, () => open(one));
    name.className = "name";
    const item = make("li", { className: one === chat ? "current" : "" }, name,
      button("✎", "Rename", () => {
        const title = prompt("Name of the chat", one.title)?.trim();
        if (title) { one.title = title; keep(); showAll(); }
      }),
      button("✕", "Delete", () => remove(one)));
    if (one === chat) name.setAttribute("aria-current", "true");
    return item;
  }));
  $("title").textContent = chat.title;
}

function open(one) {
  running?.abort();
  chat = one;
  $("side").classList.remove("open");
  showAll();
  $("input").focus();
}

function remove(one) {
  if (!confirm(`Delete "${one.title}"?`)) return;
  chats.splice(chats.indexOf(one), 1);
  if (one === chat) open(chats[0] ?? newChat());
  keep();
  showChats();
}

function keep() {
  if (!saveChats()) $("model").textContent = "this browser has no room for more chats";
}

// --- Messages

function showAll() {
  showChats();
  $("messages").replaceChildren(...chat.messages.map(item));
  if (!chat.messages.length) $("messages").append(make("li", { className: "empty" }, "What is on your mind?"));
  $("messages").scrollTop = $("messages").scrollHeight;
}

function item(message) {
  const node = make("li", { className: message.role });
  fill(node, message);
  return node;
}

/** The parts of a message's item. */
function fill(node, message) {
  const parts = [make("div", { className: "role" }, message.role === "user" ? "You" : message.model ?? model.name ?? "Model")];
  if (message.thought) {
    const wasOpen = node.querySelector("details.thought")?.open ?? false;
    const details = make("details", { className: "thought", open: wasOpen });
    details.append(make("summary", {}, "Thoughts"), make("div", {}, message.thought));
    parts.push(details);
  }
  const body = make("div", { className: "body" });
  if (message.role === "user") body.textContent = message.content;
  else if (message.tokens?.length && !message.pending) body.append(...probabilities(message.tokens));
  else body.append(markdown(message.content));
  parts.push(body);
  for (const file of message.files ?? []) {
    parts.push(make("details", { className: "thought" }, make("summary", {}, file.name), make("div", {}, file.text)));
  }
  if (message.error) parts.push(make("p", { className: "error", role: "alert" }, message.error));
  if (!message.pending) parts.push(tools(node, message));
  node.replaceChildren(...parts);
}

function tools(node, message) {
  const row = make("div", { className: "tools" });
  const again = () => chat.messages.indexOf(message);
  row.append(button("Copy", "Copy the text", () => navigator.clipboard.writeText(message.content)));
  if (message.role === "user") {
    row.append(button("Edit", "Edit and send again", () => edit(node, message)));
  } else {
    row.append(button("Regenerate", "Another reply", () => { chat.messages.length = again(); reply(); }));
    row.append(button("Edit", "Change the reply", () => edit(node, message)));
  }
  if (message.stats) row.append(make("span", { className: "stats" }, message.stats));
  return row;
}

function edit(node, message) {
  if (running) return;
  const area = make("textarea", { value: message.content, rows: Math.min(12, message.content.split("\n").length + 1) });
  area.setAttribute("aria-label", "Edit the message");
  const done = () => {
    message.content = area.value;
    delete message.tokens;
    keep();
    if (message.role !== "user") return fill(node, message);
    chat.messages.length = chat.messages.indexOf(message) + 1;
    reply();
  };
  area.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); done(); }
    if (event.key === "Escape") { event.stopPropagation(); fill(node, message); }
  });
  const row = make("div", { className: "tools" }, button(message.role === "user" ? "Send" : "Save", "", done),
    button("Cancel", "", () => fill(node, message)));
  node.replaceChildren(area, row);
  area.focus();
}

/** Tokens with their probabilities; a click shows the alternatives. */
function probabilities(tokens) {
  const alternatives = make("div", { className: "alternatives", hidden: true });
  const percent = (logprob) => `${(Math.exp(logprob) * 100).toFixed(1)} %`.padStart(8);
  const spans = tokens.map(({ token, logprob, top }) => {
    const level = [0.9, 0.5, 0.2, 0.05].findIndex((least) => Math.exp(logprob) >= least);
    const span = make("span", { className: `p${level < 0 ? 4 : level}`, tabIndex: 0, title: percent(logprob).trim() }, token);
    const show = () => {
      const lines = top.map((one) => `${percent(one.logprob)}  ${JSON.stringify(one.token)}`);
      alternatives.textContent = lines.join("\n");
      alternatives.hidden = false;
    };
    span.addEventListener("click", show);
    span.addEventListener("keydown", (event) => { if (event.key === "Enter") show(); });
    return span;
  });
  return [make("div", { className: "tokens" }, ...spans), alternatives];
}

// --- Replies

/** What is asked of the server. */
function request() {
  const body = { model: model.name, stream: true, stream_options: { include_usage: true } };
  for (const name of NUMBERS) if (settings[name] !== undefined) body[name] = settings[name];
  if (settings.schema?.trim()) {
    let schema;
    try { schema = JSON.parse(settings.schema); } catch (error) { throw new Error(`The JSON schema: ${error.message}`); }
    body.response_format = { type: "json_schema", json_schema: { name: "reply", schema } };
  }
  const written = (message) => [...(message.files ?? []).map((file) => `${file.name}:\n\`\`\`\n${file.text}\n\`\`\`\n\n`),
    message.content].join("");
  if (!model.chats) {
    if (settings.probabilities) body.logprobs = 5;
    body.max_tokens ??= 200;
    return ["/v1/completions", { ...body, prompt: chat.messages.map(written).join("") }];
  }
  if (settings.probabilities) Object.assign(body, { logprobs: true, top_logprobs: 5 });
  const system = settings.system?.trim() ? [{ role: "system", content: settings.system }] : [];
  body.messages = [...system, ...chat.messages.map((message) => ({ role: message.role, content: written(message) }))];
  return ["/v1/chat/completions", body];
}

/** The data of server-sent events. */
async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let pending = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    pending += value;
    const lines = pending.split("\n");
    pending = lines.pop();
    for (const line of lines) if (line.startsWith("data: ")) yield line.slice(6);
  }
}

function take(choice, message) {
  message.content += choice.delta?.content ?? choice.text ?? "";
  if (choice.delta?.reasoning_content) message.thought = (message.thought ?? "") + choice.delta.reasoning_content;
  const one = ({ token, logprob }) => ({ token, logprob });
  for (const token of choice.logprobs?.content ?? []) {
    (message.tokens ??= []).push({ ...one(token), top: token.top_logprobs.map(one) });
  }
  choice.logprobs?.tokens?.forEach((token, i) => {
    const top = Object.entries(choice.logprobs.top_logprobs[i] ?? {}).map(([token, logprob]) => ({ token, logprob }));
    top.sort((a, b) => b.logprob - a.logprob);
    (message.tokens ??= []).push({ token, logprob: choice.logprobs.token_logprobs[i], top });
  });
}

async function reply() {
  if (running) return;
  const own = chat;
  let path, body;
  const message = { role: "assistant", content: "", pending: true, model: model.name };
  const control = new AbortController();
  try { [path, body] = request(); } catch (error) { message.error = error.message; }
  own.messages.push(message);
  showAll();
  const node = $("messages").lastElementChild;
  running = control;
  busy(true);
  let [first, pieces, usage, speed, drawn] = [0, 0, null, null, false];
  const draw = () => {
    drawn = false;
    if (own !== chat) return;
    const list = $("messages");
    const follows = list.scrollHeight - list.scrollTop - list.clientHeight < 80;
    fill(node, message);
    if (follows) list.scrollTop = list.scrollHeight;
  };
  try {
    if (message.error) return;
    const response = await fetch(`.${path}`, {
      method: "POST", headers: { "content-type": "application/json", ...headers() }, body: JSON.stringify(body),
      signal: control.signal,
    });
    if (!response.ok) {
      const text = await response.text();
      let reason = text;
      try { reason = JSON.parse(text).error.message; } catch { /* not JSON: as it is */ }
      throw new Error(`${response.status}: ${reason.slice(0, 500)}`);
    }
    for await (const data of events(response.body)) {
      if (data === "[DONE]") break;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Error(chunk.error.message);
      usage = chunk.usage ?? usage;
      speed = chunk.timings?.predicted_per_second ?? speed;
      if (!chunk.choices[0]) continue;
      first ||= performance.now();
      pieces += 1;
      take(chunk.choices[0], message);
      if (chunk.choices[0].finish_reason === "length") message.cut = true;
      if (!drawn) { drawn = true; requestAnimationFrame(draw); }
    }
  } catch (error) {
    if (error.name !== "AbortError") message.error = error.message;
  } finally {
    const seconds = first ? (performance.now() - first) / 1000 : 0;
    const tokens = usage?.completion_tokens ?? pieces;
    // A reply that was stopped has no end with the server's figure.
    speed ??= seconds > 0 && pieces > 1 ? (tokens - 1) / seconds : 0;
    if (tokens) message.stats = `${tokens} token${tokens === 1 ? "" : "s"}`;
    if (tokens && speed) message.stats += `, ${speed.toFixed(1)} tokens/s`;
    const end = control.signal.aborted ? "stopped" : message.cut ? "cut off: maximum tokens or context" : null;
    message.stats = [message.stats, end].filter(Boolean).join(", ");
    delete message.pending;
    running = null;
    busy(false);
    if (own.title === "New chat") {
      own.title = own.messages[0].content.trim().split("\n")[0].slice(0, 40) || own.messages[0].files?.[0]?.name || "New chat";
    }
    draw();
    keep();
    showChats();
  }
}

function busy(is) {
  $("send").textContent = is ? "Stop" : "Send";
  $("send").title = is ? "Stop (Esc)" : "Send (Enter)";
}

// --- The box

function fit() {
  $("input").style.height = "auto";
  $("input").style.height = `${$("input").scrollHeight + 2}px`;
}

function send() {
  if (running) return running.abort();
  const content = $("input").value;
  if (!content.trim() && !files.length) return;
  chat.messages.push({ role: "user", content, ...(files.length ? { files } : {}) });
  files = [];
  $("input").value = "";
  fit();
  showFiles();
  reply();
}

function showFiles() {
  $("files").replaceChildren(...files.map((file) => make("li", {}, file.name, button("✕", "Remove", () => {
    files = files.filter((one) => one !== file);
    showFiles();
  }))));
}

async function attach(list) {
  for (const file of list) {
    let text = null;
    try {
      if (file.size <= MAX_FILE) text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
    } catch { /* not a text */ }
    if (text === null) alert(`${file.name} is not a text of at most ${MAX_FILE / 1000} kB`);
    else files.push({ name: file.name, text });
  }
  showFiles();
}

$("composer").addEventListener("submit", (event) => { event.preventDefault(); send(); });
$("input").addEventListener("input", fit);
$("input").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    if (!running) send();
  }
  const last = chat.messages.findLastIndex((message) => message.role === "user");
  if (event.key === "ArrowUp" && !$("input").value && last >= 0) {
    event.preventDefault();
    edit($("messages").children[last], chat.messages[last]);
  }
});
$("attach").addEventListener("click", () => $("picker").click());
$("picker").addEventListener("change", async () => { await attach($("picker").files); $("picker").value = ""; });
document.addEventListener("dragover", (event) => event.preventDefault());
document.addEventListener("drop", (event) => { event.preventDefault(); attach(event.dataTransfer.files); });
const begin = () => open(chat.messages.length ? newChat() : chat);
$("new").addEventListener("click", begin);
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") { running?.abort(); $("side").classList.remove("open"); }
  if (event.altKey && event.code === "KeyN") { event.preventDefault(); begin(); }
});
$("open-side").addEventListener("click", () => $("side").classList.add("open"));
$("close-side").addEventListener("click", () => $("side").classList.remove("open"));

// --- Settings

$("open-settings").addEventListener("click", () => {
  $("settings").hidden = !$("settings").hidden;
  $("open-settings").setAttribute("aria-expanded", String(!$("settings").hidden));
});
for (const name of [...NUMBERS, ...TEXTS]) {
  $(name).value = settings[name] ?? "";
  $(name).addEventListener("change", () => {
    const value = $(name).value;
    if (value === "") delete settings[name];
    else settings[name] = NUMBERS.includes(name) ? Number(value) : value;
    saveSettings();
    if (name === "key") describe();
  });
}
$("models").addEventListener("change", () => {
  settings.model = $("models").value;
  saveSettings();
  $("model").textContent = "loading …";
  describe();
});
$("probabilities").checked = settings.probabilities ?? false;
$("probabilities").addEventListener("change", () => {
  settings.probabilities = $("probabilities").checked;
  saveSettings();
});

const system = matchMedia("(prefers-color-scheme: dark)");
function paint() {
  const theme = settings.theme ?? (system.matches ? "dark" : "light");
  document.documentElement.dataset.theme = theme;
  $("theme").querySelector("span").textContent = theme;
}
system.addEventListener("change", paint);
$("theme").addEventListener("click", () => {
  settings.theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  saveSettings();
  paint();
});

paint();
showAll();
describe();
