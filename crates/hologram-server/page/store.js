// Chats and settings, kept in this browser.

const CHATS = "hologram.chats";
const SETTINGS = "hologram.settings";

function read(name, otherwise) {
  try { return JSON.parse(localStorage.getItem(name)) ?? otherwise; } catch { return otherwise; }
}

/** Writes a value; false if the browser has no room for it. */
function write(name, value) {
  try { localStorage.setItem(name, JSON.stringify(value)); return true; } catch { return false; }
}

export const settings = read(SETTINGS, {});
export const saveSettings = () => write(SETTINGS, settings);

export const chats = read(CHATS, []).filter((chat) => Array.isArray(chat?.messages));
export const saveChats = () => {
  // Probabilities take the most room: they go first, from the oldest chats on.
  for (const chat of [null, ...chats.toReversed()]) {
    chat?.messages.forEach((message) => delete message.tokens);
    if (write(CHATS, chats)) return true;
  }
  return false;
};

export function newChat() {
  const chat = { id: crypto.getRandomValues(new Uint32Array(2)).join("-"), title: "New chat", messages: [] };
  chats.unshift(chat);
  return chat;
}
