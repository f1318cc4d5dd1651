// Drives the page of `hologram serve` in a headless Chromium, and takes screenshots to look at.
//
//     npm install --prefix DIR playwright-core
//     CHROMIUM=/path/to/chromium NODE_PATH=DIR/node_modules node tools/server/page.mjs target/debug/hologram SHOTS
//
// The first check that fails ends the run. With PAGE=crates/hologram-server/page the page's files are those of the folder
// instead of the binary's.

import assert from "node:assert";
import { spawn } from "node:child_process";
import { mkdtempSync, readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";

// NODE_PATH serves `require` only.
const { chromium } = createRequire(import.meta.url)("playwright-core");

const [hologram, shots] = process.argv.slice(2);
const root = join(dirname(fileURLToPath(import.meta.url)), "../..");
const model = join(root, "crates/hologram-llm/tests/fixtures/chat-tiny.gguf");
const servers = [];
/** Starts a server of a model and returns its address. */
async function serve(...model) {
  const command = ["serve", ...model, "--port", "0", "--device", "cpu", "--threads", "1"];
  const server = spawn(hologram, command, { stdio: ["ignore", "pipe", "inherit"] });
  servers.push(server);
  return new Promise((resolve) => createInterface({ input: server.stdout }).once("line", resolve));
}
const address = await serve("-m", model, "--alias", "tiny");
// The built-in model, which continues texts, and not too fast to be stopped.
const texts = await serve();
// Several models, each loaded when it is chosen.
const several = await serve("-m", `first=${model}`, "-m", `other model=${model}`);

const browser = await chromium.launch({ executablePath: process.env.CHROMIUM, args: ["--no-sandbox"] });
const context = await browser.newContext({ viewport: { width: 1100, height: 760 }, colorScheme: "light" });
const page = await context.newPage();
if (process.env.PAGE) {
  await page.route("**/page/*", async (route) => {
    const body = readFileSync(join(process.env.PAGE, route.request().url().split("/").pop()));
    await route.fulfill({ response: await route.fetch(), body });
  });
}
const faults = [];
page.on("request", (request) => {
  const own = [address, texts, several, "data:"];
  if (!own.some((origin) => request.url().startsWith(origin))) faults.push(`request to ${request.url()}`);
});
page.on("pageerror", (error) => faults.push(`error: ${error.message}`));
page.on("console", (message) => { if (message.type() === "error") faults.push(`console: ${message.text()}`); });
page.on("dialog", (dialog) => dialog.accept("Renamed"));
const shot = (name) => (shots ? page.screenshot({ path: join(shots, `${name}.png`) }) : null);
const messages = page.locator("#messages > li");
const idle = () => page.waitForFunction(() => document.getElementById("send").textContent === "Send");
const send = async (text) => { await page.fill("#input", text); await page.keyboard.press("Enter"); };
const set = async (name, value) => { await page.fill(`#${name}`, value); await page.locator(`#${name}`).blur(); };

const checks = {
  async "a reply with its speed"() {
    await page.goto(address);
    await page.waitForFunction(() => document.getElementById("model").textContent === "tiny");
    await page.click("#open-settings");
    await set("max_tokens", "30");
    await set("seed", "7");
    await shot("settings");
    await page.click("#open-settings");
    const [answer] = await Promise.all([page.waitForResponse("**/v1/chat/completions"), send("Hello")]);
    await messages.nth(1).locator(".stats").waitFor();
    // The server's own figure: chunks that arrive together say nothing of the time between them.
    const speed = Number((await answer.text()).match(/"predicted_per_second":([0-9.e+]+)/)[1]);
    assert.match(await messages.nth(1).locator(".stats").textContent(), RegExp(`, ${speed.toFixed(1)} tokens/s`));
    assert.equal(await messages.count(), 2);
  },
  async "regenerate and edit"() {
    await messages.nth(1).getByText("Regenerate").click();
    await idle();
    assert.equal(await messages.count(), 2);
    await page.locator("#input").press("ArrowUp");
    await messages.nth(0).locator("textarea").fill("Hello again");
    await page.keyboard.press("Enter");
    await idle();
    assert.equal(await messages.nth(0).locator(".body").textContent(), "Hello again");
    assert.equal(await messages.count(), 2);
  },
  async "probabilities"() {
    await page.click("#open-settings");
    await set("max_tokens", "12");
    await page.check("#probabilities");
    await page.click("#open-settings");
    await send("Again");
    await idle();
    await messages.nth(3).locator(".tokens span").nth(2).click();
    assert.match(await messages.nth(3).locator(".alternatives").textContent(), / %  "/);
    await shot("probabilities");
    await page.click("#open-settings");
    await page.uncheck("#probabilities");
  },
  async "a schema"() {
    await set("schema", '{"enum": ["yes", "no"]}');
    await page.click("#open-settings");
    await send("Yes or no?");
    await idle();
    assert.match(await messages.nth(5).locator(".body").textContent(), /^"(yes|no)"$/);
    await page.click("#open-settings");
    await set("schema", '{"type": "no such type"}');
    await send("And now?");
    await idle();
    assert.match(await messages.nth(7).locator(".error").textContent(), /^400: response_format/);
    // The browser itself reports the status.
    faults.splice(0, faults.length, ...faults.filter((fault) => !fault.includes("400 (Bad Request)")));
    await set("schema", "");
    await page.click("#open-settings");
  },
  async "attachments"() {
    const file = join(mkdtempSync(join(tmpdir(), "page-")), "note.txt");
    writeFileSync(file, "an attached text");
    await page.setInputFiles("#picker", file);
    await page.locator("#files li").waitFor();
    const asked = page.waitForRequest((request) => request.url().endsWith("/v1/chat/completions"));
    await send("See the file");
    assert.match((await asked).postData(), /note\.txt:\\n```\\nan attached text/);
    await idle();
  },
  async "several chats, kept"() {
    await page.keyboard.press("Alt+KeyN");
    await send("Second chat");
    await idle();
    assert.equal(await page.locator("#chats li").count(), 2);
    await page.locator("#chats li.current").getByTitle("Rename").click();
    await page.reload();
    assert.deepEqual(await page.locator("#chats .name").allTextContents(), ["Renamed", "Hello"]);
    assert.equal(await messages.count(), 2);
    await page.locator("#chats .name").nth(1).click();
    assert.ok(await messages.count() > 6);
    await page.locator("#chats li").nth(1).getByTitle("Delete").click();
    assert.equal(await page.locator("#chats li").count(), 1);
  },
  async "texts become nodes, never markup"() {
    const text = [
      "# Title", "Some *em*, **strong**, `code <b>`, ~~gone~~ and $x_1^2 + \\frac{a}{b}$, for $5 or $6.", "",
      "<img src=x onerror=alert(1)><script>alert(1)</script>", "",
      "[good](https://example.org/a?b=1_(c)) [bad](javascript:alert(1)) ![image](https://example.org/x.png)", "",
      "- one", "- two", "  1. inner", "  2. other", "", "> quoted", "", "| a | b |", "| --- | :-: |", "| 1 | `x` |", "",
      "```rust", "fn main() { println!(\"<b>\"); }", "```", "", "$$", "\\sum_{i=1}^{n} i = \\frac{n(n+1)}{2}", "$$", "",
      "\\[ \\begin{pmatrix} a & b \\\\ c & d \\end{pmatrix} \\mathbb{R}^n \\int_0^\\infty e^{-x^2}\\,dx = \\frac{\\sqrt{\\pi}}{2} \\]",
    ].join("\n");
    const found = await page.evaluate(async (text) => {
      const { markdown } = await import("/page/markdown.js");
      const body = document.querySelector("#messages > li:last-child .body");
      body.replaceChildren(markdown(text));
      const count = (selector) => body.querySelectorAll(selector).length;
      return {
        names: ["h2", "em", "strong", "del", "ul > li", "ol > li", "blockquote", "td", "pre code"].map(count),
        math: count("math"), fractions: count("mfrac"), matrix: count("mtable mtd"), img: count("img, script"),
        links: [...body.querySelectorAll("a")].map((a) => [a.href, a.rel]), text: body.textContent,
        unknown: [...body.querySelectorAll("mtext")].map((node) => node.textContent),
      };
    }, text);
    assert.deepEqual(found.names, [1, 1, 1, 1, 2, 2, 1, 2, 1]);
    assert.deepEqual([found.math, found.fractions, found.matrix, found.img], [3, 3, 4, 0]);
    const rel = "noopener noreferrer";
    assert.deepEqual(found.links, [["https://example.org/a?b=1_(c)", rel], ["https://example.org/x.png", rel]]);
    assert.ok(found.text.includes("<img src=x onerror=alert(1)><script>alert(1)</script>"));
    assert.ok(found.text.includes("good bad image"));
    assert.ok(found.text.includes("for $5 or $6.") && found.text.includes("code <b>"));
    assert.deepEqual(found.unknown, []);
    await shot("markdown");
  },
  async "any text is drawn, and soon"() {
    const seconds = await page.evaluate(async () => {
      const { markdown } = await import("/page/markdown.js");
      const started = performance.now();
      const pieces = ["*", "_", "`", "$", "[", "](", "|", "\n", "> ", "- ", "\\(", "\\frac{", "}", "```", "~~", "a", " ", "<", "$$"];
      let state = 1;
      const random = () => { state = (state * 48271) % 2147483647; return state; };
      for (let round = 0; round < 300; round += 1) {
        let text = "";
        for (let i = 0; i < 60; i += 1) text += pieces[random() % pieces.length];
        markdown(text);
      }
      for (const one of ["*", "[", "$", "> ", "- ", "`", "\\(", "**a", "$x_{", "$\\sqrt{", "| "]) markdown(one.repeat(20_000 / one.length));
      return (performance.now() - started) / 1000;
    });
    assert.ok(seconds < 20, `${seconds} s`);
  },
  async "a model that continues texts, and stop"() {
    await page.goto(texts);
    await page.waitForFunction(() => document.getElementById("model").textContent.endsWith("(continues texts)"));
    await page.click("#open-settings");
    await set("max_tokens", "1500");
    await page.click("#open-settings");
    await page.route("**/v1/completions", (route) => {
      route.continue({ postData: JSON.stringify({ ...route.request().postDataJSON(), ignore_eos: true }) });
    });
    await send("A closure in Rust is");
    await page.waitForFunction(() => document.querySelector("#messages > li:last-child .body")?.textContent.length > 20);
    await page.keyboard.press("Escape");
    await idle();
    assert.match(await messages.nth(1).locator(".tools").textContent(), /tokens\/s, stopped/);
    await shot("texts");
    await page.goto(address);
  },
  async "a choice of models"() {
    assert.equal(await page.locator("#models").isVisible(), false);
    await page.goto(several);
    const ready = () => page.waitForFunction(() => document.getElementById("models").options.length === 2
      && document.getElementById("model").textContent === "");
    const states = async () => (await (await fetch(`${several}/v1/models`)).json()).data.map((one) => one.status.value);
    await ready();
    assert.deepEqual(await states(), ["loaded", "unloaded"]);
    await page.click("#open-settings");
    await set("max_tokens", "5");
    await page.click("#open-settings");
    await send("Hello");
    await messages.nth(1).locator(".stats").waitFor();
    await page.selectOption("#models", "other model");
    await ready();
    assert.deepEqual(await states(), ["loaded", "loaded"]);
    await send("And you?");
    await messages.nth(3).locator(".stats").waitFor();
    // Each reply names the model that wrote it, also later.
    const roles = () => page.locator("#messages .role").allTextContents();
    assert.deepEqual(await roles(), ["You", "first", "You", "other model"]);
    await shot("models");
    await page.reload();
    await ready();
    assert.equal(await page.locator("#models").inputValue(), "other model");
    assert.deepEqual(await roles(), ["You", "first", "You", "other model"]);
    await page.setViewportSize({ width: 390, height: 800 });
    await shot("models-phone");
    assert.equal(await page.evaluate(() => document.documentElement.scrollWidth), 390);
    await page.setViewportSize({ width: 1100, height: 760 });
    await page.goto(address);
  },
  async "dark, and on a phone"() {
    await page.click("#theme");
    assert.equal(await page.evaluate(() => document.documentElement.dataset.theme), "dark");
    await shot("dark");
    await page.setViewportSize({ width: 390, height: 800 });
    await shot("phone");
    assert.equal(await page.evaluate(() => document.documentElement.scrollWidth), 390);
    await page.click("#open-side");
    await page.waitForTimeout(300);
    await shot("phone-chats");
    await page.click("#close-side");
  },
};

try {
  for (const [name, check] of Object.entries(checks)) {
    await check();
    assert.deepEqual(faults, [], name);
    console.log(`ok: ${name}`);
  }
} finally {
  await browser.close();
  servers.forEach((server) => server.kill());
}
