// Markdown as DOM nodes. Texts of a model become text nodes only, never markup: there is no innerHTML here.
import { math } from "./math.js";

const make = (name, ...children) => {
  const node = document.createElement(name);
  node.append(...children);
  return node;
};

/** A fragment of blocks. */
export function markdown(text) {
  const out = document.createDocumentFragment();
  blocks(text.replace(/\r\n?/g, "\n").split("\n"), out, 0);
  return out;
}

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^\s`]*)/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*$/;
const RULE = /^ {0,3}([-*_])\s*(\1\s*){2,}$/;
const ROW = /^\s*\|?.*\|.*$/;
const DIVIDER = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;
const MATH = [["$$", "$$"], ["\\[", "\\]"]];

function blocks(lines, out, depth) {
  let i = 0;
  let paragraph = [];
  const flush = () => {
    if (paragraph.length) out.append(inline(paragraph.join("\n"), make("p")));
    paragraph = [];
  };
  while (i < lines.length) {
    const line = lines[i];
    const fence = line.match(FENCE);
    const heading = line.match(HEADING);
    const begin = MATH.find(([open]) => line.trim().startsWith(open));
    if (fence) {
      flush();
      const end = new RegExp("^ {0,3}" + fence[1][0] + "{" + fence[1].length + ",}\\s*$");
      const code = [];
      for (i += 1; i < lines.length && !end.test(lines[i]); i += 1) code.push(lines[i]);
      i += 1;
      out.append(codeBlock(code.join("\n"), fence[2]));
    } else if (begin) {
      flush();
      const tex = [];
      let rest = line.trim().slice(begin[0].length);
      while (!rest.includes(begin[1]) && i + 1 < lines.length && lines[i + 1].trim()) {
        tex.push(rest);
        i += 1;
        rest = lines[i];
      }
      const end = rest.indexOf(begin[1]);
      tex.push(end < 0 ? rest : rest.slice(0, end));
      const block = make("div", math(tex.join("\n"), true));
      block.className = "block-math";
      out.append(block);
      const after = end < 0 ? "" : rest.slice(end + begin[1].length).trim();
      if (after) paragraph.push(after);
      i += 1;
    } else if (heading) {
      flush();
      out.append(inline(heading[2], make("h" + Math.min(heading[1].length + 1, 6))));
      i += 1;
    } else if (RULE.test(line)) {
      flush();
      out.append(make("hr"));
      i += 1;
    } else if (/^ {0,3}>/.test(line) && depth < 20) {
      flush();
      const quoted = [];
      for (; i < lines.length && /^ {0,3}>/.test(lines[i]); i += 1) quoted.push(lines[i].replace(/^ {0,3}> ?/, ""));
      const quote = make("blockquote");
      blocks(quoted, quote, depth + 1);
      out.append(quote);
    } else if (ITEM.test(line) && depth < 20) {
      flush();
      i = list(lines, i, out, depth);
    } else if (ROW.test(line) && i + 1 < lines.length && lines[i + 1].includes("-") && DIVIDER.test(lines[i + 1])) {
      flush();
      i = table(lines, i, out);
    } else {
      if (line.trim()) paragraph.push(line);
      else flush();
      i += 1;
    }
  }
  flush();
}

function list(lines, from, out, depth) {
  const [, indent, mark] = lines[from].match(ITEM);
  const ordered = /\d/.test(mark);
  const node = make(ordered ? "ol" : "ul");
  if (ordered && parseInt(mark, 10) !== 1) node.start = parseInt(mark, 10);
  let i = from;
  while (i < lines.length) {
    const item = lines[i].match(ITEM);
    if (!item || item[1].length !== indent.length || /\d/.test(item[2]) !== ordered) break;
    const width = lines[i].length - item[3].length;
    const own = [item[3]];
    i += 1;
    while (i < lines.length) {
      const line = lines[i];
      const deeper = line.search(/\S/) > indent.length;
      if (!line.trim()) {
        const next = lines[i + 1] ?? "";
        if (next.search(/\S/) <= indent.length) break;
        own.push("");
      } else if (deeper) {
        own.push(line.slice(Math.min(width, line.search(/\S/))));
      } else if (ITEM.test(line) || !own[own.length - 1] || HEADING.test(line) || FENCE.test(line)) {
        break;
      } else {
        own.push(line);
      }
      i += 1;
    }
    while (i < lines.length && !lines[i].trim() && ITEM.test(lines[i + 1] ?? "")) i += 1;
    const entry = make("li");
    blocks(own, entry, depth + 1);
    // A single paragraph needs no space around it.
    const first = entry.firstChild;
    if (first && first.nodeName === "P") first.replaceWith(...first.childNodes);
    node.append(entry);
  }
  out.append(node);
  return i;
}

function cells(line) {
  const parts = line.trim().replace(/^\||\|$/g, "").split(/(?<!\\)\|/);
  return parts.map((cell) => cell.trim().replaceAll("\\|", "|"));
}

function table(lines, from, out) {
  const row = (line, name) => make("tr", ...cells(line).map((cell) => inline(cell, make(name))));
  const body = make("tbody");
  let i = from + 2;
  for (; i < lines.length && ROW.test(lines[i]) && lines[i].trim(); i += 1) body.append(row(lines[i], "td"));
  out.append(make("table", make("thead", row(lines[from], "th")), body));
  return i;
}

function codeBlock(text, language) {
  const code = make("code", text);
  if (language) code.dataset.language = language;
  const copy = make("button", "Copy");
  copy.type = "button";
  copy.className = "plain";
  copy.addEventListener("click", async () => {
    await navigator.clipboard.writeText(text);
    copy.textContent = "Copied";
    setTimeout(() => { copy.textContent = "Copy"; }, 1500);
  });
  const block = make("div", make("pre", code), copy);
  block.className = "code";
  return block;
}

const INLINE = [
  [/^(`+)([^]*?[^`])\1(?!`)/, (m) => make("code", m[2].replace(/^ (.*) $/, "$1"))],
  [/^\$\$([^]+?)\$\$/, (m) => math(m[1], true)],
  [/^\\\(([^]+?)\\\)/, (m) => math(m[1], false)],
  [/^\\\[([^]+?)\\\]/, (m) => math(m[1], true)],
  // A price such as $5 is not mathematics.
  [/^\$(?=[^\s$])([^$\n]*?[^\s\\$])\$(?!\d)/, (m) => math(m[1], false)],
  [/^\\([!-/:-@[-`{-~])/, (m) => document.createTextNode(m[1])],
  [/^\*\*(?=\S)([^]+?)\*\*/, (m, depth) => inline(m[1], make("strong"), depth)],
  [/^__(?=\S)([^]+?)__(?!\w)/, (m, depth) => inline(m[1], make("strong"), depth)],
  [/^\*(?=[^\s*])([^*]+?)\*/, (m, depth) => inline(m[1], make("em"), depth)],
  [/^_(?=[^\s_])([^_]+?)_(?!\w)/, (m, depth) => inline(m[1], make("em"), depth)],
  [/^~~(?=\S)([^]+?)~~/, (m, depth) => inline(m[1], make("del"), depth)],
  // An image would be a request to another origin: it becomes a link.
  [/^!?\[([^\]\n]*)\]\(\s*<?((?:[^\s<>()]|\([^\s<>()]*\))+)>?(?:\s+"[^"\n]*")?\s*\)/, (m, depth) => link(m[2], m[1], depth)],
  [/^<?(https?:\/\/[^\s<>"']*[^\s<>"'.,;:!?)\]])>?/, (m, depth) => link(m[1], m[1], depth)],
];

function link(target, text, depth) {
  let url;
  try { url = new URL(target); } catch { url = null; }
  if (!url || !["http:", "https:", "mailto:"].includes(url.protocol)) return document.createTextNode(text);
  const node = depth < 0 ? make("a", text) : inline(text, make("a"), -1);
  node.href = url.href;
  node.target = "_blank";
  node.rel = "noopener noreferrer";
  return node;
}

/** Appends a text's inline nodes to a node. Within links (`depth` below 0) there are no links. */
function inline(text, node, depth = 0) {
  let plain = "";
  let at = 0;
  while (at < text.length) {
    const c = text[at];
    const starts = "`$\\*_~![<h".includes(c) && !(c === "_" && /\w/.test(text[at - 1] ?? " "));
    const rest = starts && depth < 20 ? text.slice(at, at + 4000) : "";
    let found = null;
    for (const [pattern, build] of starts ? INLINE : []) {
      const match = rest.match(pattern);
      if (match && !(depth < 0 && /^(!?\[|<?h)/.test(match[0]))) {
        found = [match, build];
        break;
      }
    }
    if (found) {
      node.append(plain, found[1](found[0], depth < 0 ? depth : depth + 1));
      plain = "";
      at += found[0][0].length;
    } else {
      plain += c;
      at += 1;
    }
  }
  node.append(plain);
  return node;
}
