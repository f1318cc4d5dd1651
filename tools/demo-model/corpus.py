#!/usr/bin/env python3
"""Turn the Rust documentation that ships with a toolchain into clean text.

    python corpus.py DOC_HTML_DIR OUT_DIR [--jobs 2]

DOC_HTML_DIR is `$(rustc --print sysroot)/share/doc/rust/html`. The result is
Markdown-like text (headings, prose, lists, tables, fenced code): OUT_DIR/train.txt,
OUT_DIR/valid.txt and OUT_DIR/heldout.txt, documents separated by one NUL byte each, plus
corpus.json with the counts. The output depends on the input alone.

OUT_DIR/source.txt is optional further training text: the library's own code from the
documentation's source views, without its doc comments (they hold the documentation again,
the held-out part included) and attributes; and the release notes.

What is dropped: navigation, sidebars, source views, redirects, translations, all-in-one
print pages, older editions of the Book, the thousands of generated SIMD intrinsic pages
(core::arch, core::simd), trait-implementation lists, Deref-method lists, hidden ("boring")
example lines and every piece of text already seen. "Seen" compares text with integer,
float, atomic and NonZero type names and numbers erased, because the library documents each
method of its twelve integer types in the same words.

A hash of its path sends a document to `valid` (about 2 %; it picks settings and
checkpoints) or to `heldout` (about 2 %; it is only measured). Deduplication runs over all
parts, so held-out paragraphs and examples are not copies of training ones; signatures,
headings, short pieces and parts of an example still can be.
"""
import argparse
import hashlib
import json
import os
import re
from multiprocessing import Pool

from lxml import etree
from lxml import html as lxml_html

# In this order, which matters: of two copies the first is kept. The Embedded Rust Book is left
# out: its prose is CC-BY-SA-4.0. All that is listed is MIT OR Apache-2.0.
PARTS = [
    "book", "reference", "rust-by-example", "std", "alloc", "core", "proc_macro", "test",
    "nomicon", "cargo", "edition-guide", "error_codes", "rustc", "rustdoc", "clippy",
    "style-guide", "unstable-book",
]
RUSTDOC = {"std", "alloc", "core", "proc_macro", "test"}
SKIP_DIRS = (
    "book/2018-edition", "book/first-edition", "book/second-edition",
    "rust-by-example/es", "rust-by-example/ja", "rust-by-example/ko", "rust-by-example/zh",
    "std/arch", "core/arch", "std/simd", "core/simd", "core/core_simd", "core/core_arch",
    "core/intrinsics/simd", "core/unicode", "std/os/raw", "std/intrinsics",
    "core/stdarch",
)
SKIP_FILES = {"print.html", "toc.html", "all.html", "SUMMARY.html", "README.html",
              "CHANGELOG.html", "404.html", "test-summary.html", "releases.html"}
SHARE = 200  # of 10,000 documents, in each of `valid` and `heldout`

BLOCKS = {"p", "pre", "ul", "ol", "dl", "table", "blockquote", "h1", "h2", "h3", "h4", "h5",
          "h6", "div", "section", "details", "figure", "article", "main", "hr", "center"}
DROP_TAGS = {"script", "style", "svg", "button", "nav", "noscript", "rustdoc-toolbar",
             "rustdoc-topbar", "img", "input", "iframe", "picture", "template"}
DROP_CLASSES = {"anchor", "doc-anchor", "src", "since", "stab", "item-info", "tooltip",
                "test-arrow", "rightside", "sub-heading", "out-of-band", "buttons", "boring",
                "sidebar", "nav-wrapper", "hideme", "footnote-reference", "rule-link",
                "notable-traits", "impl-items-hidden", "grammar-railroad", "railroad"}
DROP_IDS = {"trait-implementations", "trait-implementations-list",
            "synthetic-implementations", "synthetic-implementations-list",
            "blanket-implementations", "blanket-implementations-list",
            "implementors", "implementors-list", "synthetic-implementors",
            "foreign-impls", "copy-path"}


def dropped(el):
    if not isinstance(el.tag, str) or el.tag in DROP_TAGS:
        return True
    eid = el.get("id") or ""
    if eid in DROP_IDS or eid.startswith("deref-methods"):
        return True
    cls = el.get("class")
    return bool(cls) and not DROP_CLASSES.isdisjoint(cls.split())


def squeeze(text):
    return re.sub(r"\s+", " ", text.replace("\u00a0", " ")).strip()


def raw(el, out):
    """The text of an element with its line structure."""
    if el.text:
        out.append(el.text)
    for c in el:
        if not dropped(c):
            if c.tag == "br":
                out.append("\n")
            elif c.tag == "div" and "where" in (c.get("class") or ""):
                out.append("\n")
                raw(c, out)
                out.append("\n")
            else:
                raw(c, out)
        if c.tail:
            out.append(c.tail)


def code_text(el):
    out = []
    raw(el, out)
    lines = [l.rstrip() for l in "".join(out).replace("\u00a0", " ").expandtabs(4).split("\n")]
    while lines and not lines[0]:
        lines.pop(0)
    while lines and not lines[-1]:
        lines.pop()
    indent = min((len(l) - len(l.lstrip()) for l in lines if l), default=0)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(l[indent:] for l in lines))


def inline(el, out):
    if el.text:
        out.append(el.text)
    for c in el:
        if not dropped(c):
            tag = c.tag
            if tag == "code":
                t = squeeze(code_text(c))
                out.append(f"`{t}`" if t else "")
            elif tag in ("em", "i", "strong", "b"):
                inner = []
                inline(c, inner)
                t = "".join(inner).strip()
                mark = "*" if tag in ("em", "i") else "**"
                out.append(f"{mark}{t}{mark}" if t else "")
            elif tag == "br":
                out.append(" ")
            else:
                inline(c, out)
        if c.tail:
            out.append(c.tail)


def inline_text(el):
    out = []
    inline(el, out)
    return squeeze("".join(out))


def language(pre):
    code = pre.find("code")
    cls = (pre.get("class") or "") + " " + ((code.get("class") or "") if code is not None else "")
    m = re.search(r"language-([A-Za-z0-9_+-]+)", cls)
    if m:
        lang = m.group(1).lower()
        return {"plaintext": "text", "shell": "console", "sh": "console",
                "none": "text"}.get(lang, lang)
    return "rust" if re.search(r"\brust\b", cls) else "text"


def fence(pre):
    body = code_text(pre)
    return f"```{language(pre)}\n{body}\n```" if body else ""


def blocks(el, out):
    """Append the blocks of text under `el` to `out`: (kind, text)."""
    run = []  # loose inline content between block children

    def flush():
        text = squeeze("".join(run))
        run.clear()
        if text:
            out.append(("p", text))

    if el.text:
        run.append(el.text)
    for c in el:
        if not dropped(c):
            tag = c.tag
            cls = c.get("class") or ""
            if tag in BLOCKS or tag in ("summary", "figcaption", "dt", "dd", "li"):
                flush()
            if tag in ("h1", "h2", "h3", "h4", "h5", "h6"):
                if "code-header" in cls:
                    kind = "impl" if tag == "h3" else "item"
                    sig = code_text(c)
                    if kind == "impl":
                        out.append((kind, "### `" + squeeze(sig) + "`"))
                    elif len(squeeze(sig)) <= 96:
                        out.append((kind, "#### `" + squeeze(sig) + "`"))
                    else:
                        out.append((kind, "```rust\n" + sig + "\n```"))
                else:
                    t = inline_text(c)
                    if t:
                        out.append(("h" + tag[1], "#" * int(tag[1]) + " " + t))
            elif tag in ("p", "figcaption"):
                t = inline_text(c)
                if t:
                    out.append(("p", t))
            elif tag == "pre":
                t = fence(c)
                if t:
                    out.append(("code", t))
            elif tag in ("ul", "ol"):
                t = list_text(c, 0)
                if t:
                    out.append(("list", t))
            elif tag == "dl":
                items = []
                for d in c:
                    if d.tag == "dt":
                        items.append("- " + inline_text(d))
                    elif d.tag == "dd" and items:
                        t = inline_text(d)
                        items[-1] += f": {t}" if t else ""
                # a module index: names without a description carry nothing
                items = [i for i in items if ": " in i]
                if items:
                    out.append(("list", "\n".join(items)))
            elif tag == "table":
                rows = []
                for tr in c.iter("tr"):
                    cells = [inline_text(x) for x in tr if x.tag in ("td", "th")]
                    rows.append("| " + " | ".join(cells) + " |")
                    if len(rows) == 1:
                        rows.append("|" + " --- |" * len(cells))
                if len(rows) > 2:
                    out.append(("table", "\n".join(rows)))
            elif tag == "blockquote":
                sub = []
                blocks(c, sub)
                t = "\n\n".join(x for _, x in sub)
                if t:
                    out.append(("p", "\n".join(("> " + l).rstrip() for l in t.split("\n"))))
            elif tag == "div" and "docblock" in cls:
                sub = []
                blocks(c, sub)
                if sub:
                    out.append(("doc", sub))
            elif tag in BLOCKS or tag in ("summary", "dt", "dd", "li"):
                blocks(c, out)
            elif tag == "code":
                run.append(f"`{squeeze(code_text(c))}`")
            else:
                inner = []
                inline(c, inner)
                run.extend(inner)
        if c.tail:
            run.append(c.tail)
    flush()


def list_text(el, depth):
    lines = []
    number = 0
    for li in el:
        if li.tag != "li" or dropped(li):
            continue
        number += 1
        mark = f"{number}. " if el.tag == "ol" else "- "
        pad = " " * len(mark)
        sub = []
        blocks(li, sub)
        text = "\n\n".join(t for _, t in flat(sub))
        tight = "\n\n" not in text
        text = re.sub(r"\n\n(?=(- |\d+\. ))", "\n", text)
        body = text.split("\n")
        item = "\n".join([mark + body[0]] + [(pad + l) if l else "" for l in body[1:]])
        lines.append(item if tight or not lines else "\n" + item)
    return "\n".join(lines)


def flat(bs):
    for kind, b in bs:
        if kind == "doc":
            yield from flat(b)
        else:
            yield kind, b


def parse(job):
    root, rel = job
    with open(os.path.join(root, rel), "rb") as f:
        data = f.read()
    if b'http-equiv="refresh"' in data[:2000] or len(data) < 600:
        return rel, None
    try:
        tree = lxml_html.document_fromstring(data.decode("utf-8", "replace"))
    except (etree.ParserError, ValueError):
        return rel, None
    out = []
    if rel.split("/")[0] in RUSTDOC:
        main = tree.find('.//section[@id="main-content"]')
        if main is None:
            return rel, None
        head = main.find('./div[@class="main-heading"]')
        if head is not None:
            crumbs = head.find('./div[@class="rustdoc-breadcrumbs"]')
            title = squeeze("".join(x for x in raw_list(head.find("h1"))))
            path = squeeze("".join(raw_list(crumbs))).replace(" ", "") if crumbs is not None else ""
            if path and " " in title:
                kind, name = title.rsplit(" ", 1)
                title = f"{kind} {path}::{name}"
            out.append(("h1", "# " + title))
            main.remove(head)
    else:
        main = tree.find(".//main")
        if main is None:
            return rel, None
    blocks(main, out)
    return rel, out


def raw_list(el):
    out = []
    raw(el, out)
    return out


TYPES = re.compile(
    r"\b(?:Atomic|NonZero)?[iIuU](?:8|16|32|64|128|size)\b|\bf(?:16|32|64|128)\b"
    r"|\b(?:Atomic|NonZero)(?:Isize|Usize)\b|\d+")


def key(text):
    text = TYPES.sub("0", text)
    text = re.sub(r"[^0-9A-Za-z]+", " ", text).strip()
    return hashlib.sha1(text.encode()).digest()[:10]


class Seen:
    """Text already written, by hash; `fresh` is asked once per piece."""

    def __init__(self):
        self.keys = set()
        self.dropped = 0

    def fresh(self, text):
        k = key(text)
        if k in self.keys:
            self.dropped += len(text)
            return False
        self.keys.add(k)
        return True


def doc_pieces(bs, seen):
    """A doc comment: all of it once, then its long paragraphs and code blocks once."""
    plain = list(flat(bs))
    whole = "\n".join(t for _, t in plain)
    if not seen.fresh(whole):
        return []
    kept = []
    for kind, t in plain:
        if kind in ("p", "code", "list", "table") and len(t) >= 60 and len(plain) > 1:
            if not seen.fresh(t):
                continue
        kept.append((kind, t))
    return kept


def assemble(bs, seen):
    """Blocks -> text, without what was seen and without headings left with no body."""
    flat_out = []
    for kind, b in bs:
        if kind == "doc":
            flat_out.extend(doc_pieces(b, seen))
        elif kind in ("p", "code", "list", "table"):
            if len(b) < 40 or seen.fresh(b):
                flat_out.append((kind, b))
        else:
            flat_out.append((kind, b))
    level = {"h1": 1, "h2": 2, "impl": 3, "h3": 3, "item": 4, "h4": 4, "h5": 5, "h6": 6}
    kept = []
    deeper = 0  # the level of the heading that follows; 9 = body follows
    for kind, t in reversed(flat_out):
        lv = level.get(kind)
        if lv is None:
            kept.append(t)
            deeper = 9
        elif deeper > lv:
            kept.append(t)
            deeper = lv
    kept.reverse()
    return "\n\n".join(kept)


PLAIN = str.maketrans({"\u2019": "'", "\u2018": "'", "\u201c": '"', "\u201d": '"',
                       "\u200b": None, "\r": None, "\x00": None, "\ufeff": None})


def tidy(text):
    """Typographic variants to the plain forms; no control characters."""
    text = text.translate(PLAIN)
    return re.sub(r"[ \t]+\n", "\n", text).strip() + "\n"


def part_of(rel):
    # std::vec and alloc::vec are one document for this purpose
    rel = re.sub(r"^(std|alloc|core)/", "lib/", rel)
    h = int.from_bytes(hashlib.sha256(rel.encode()).digest()[:4], "big") % 10000
    return "valid" if h < SHARE else "heldout" if h < 2 * SHARE else "train"


# The types a reader meets most come first, so that theirs are the copies kept.
FIRST = {f"std/primitive.{t}.html": i for i, t in enumerate(["i32", "u32", "f64", "usize"])}


def files(root):
    for part in PARTS:
        found = []
        for d, dirs, names in os.walk(os.path.join(root, part)):
            rel = os.path.relpath(d, root)
            dirs[:] = [x for x in dirs if f"{rel}/{x}" not in SKIP_DIRS]
            for n in names:
                if n.endswith(".html") and n not in SKIP_FILES:
                    found.append(os.path.join(rel, n))
        yield from sorted(found, key=lambda f: (FIRST.get(f, 99), f))


NOISE = re.compile(r"^\s*(///|//!|#!?\[(stable|unstable|rustc|doc|must_use|inline|cfg_attr|"
                   r"lang|allow|track_caller|diagnostic)\b[^\n]*\]\s*$)")


def source(path):
    with open(path, encoding="utf-8") as f:
        tree = lxml_html.document_fromstring(f.read())
    pre = tree.find('.//pre[@class="rust"]')
    if pre is None:
        return ""
    for a in list(pre.iter("a")):
        if (a.get("href") or "").startswith("#") and (a.text or "").strip().isdigit():
            a.text = None  # a line number
    text = "".join(pre.itertext()).replace("\u00a0", " ")
    text = re.sub(r"\n?[ \t]*#!?\[(?:stable|unstable|rustc\w*|doc|must_use|cfg_attr|deprecated)"
                  r"\b[^\]\[]*(?:\[[^\]]*\][^\]\[]*)*\]", "", text)
    lines = [l.rstrip() for l in text.split("\n") if not NOISE.match(l)]
    text = re.sub(r"\n{3,}", "\n\n", "\n".join(lines))
    name = "/".join(path.split("/src/")[-1].split("/"))[: -len(".html")]
    return tidy(f"// {name}\n\n{text.strip()}")


def release_notes(path):
    with open(path, encoding="utf-8") as f:
        text = f.read()
    text = re.sub(r"^\[[^\]]+\]:.*\n?", "", text, flags=re.M)  # link targets
    text = re.sub(r"\[((?:[^\[\]]|\[[^\]]*\])+)\](\([^)]*\)|\[[^\]]*\])?", r"\1", text)
    text = re.sub(r"^<a id=.*\n?", "", text, flags=re.M)
    return tidy(re.sub(r"\n{3,}", "\n\n", text))


def source_files(root):
    found = []
    for d, dirs, names in os.walk(os.path.join(root, "src")):
        dirs[:] = [x for x in dirs if x not in ("stdarch", "core_arch", "core_simd", "unicode",
                                                "std_detect", "portable-simd", "benches")]
        found += [os.path.join(d, n) for n in names if n.endswith(".rs.html")]
    return sorted(found)


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("html")
    ap.add_argument("out")
    ap.add_argument("--jobs", type=int, default=2)
    args = ap.parse_args()
    os.makedirs(args.out, exist_ok=True)
    seen = Seen()
    split = {"train": [], "valid": [], "heldout": []}
    chars = {}
    jobs = [(args.html, rel) for rel in files(args.html)]
    with Pool(args.jobs) as pool:
        for rel, bs in pool.imap(parse, jobs, chunksize=64):
            if not bs:
                continue
            text = tidy(assemble(bs, seen))
            if len(text) < 160 or "\n\n" not in text:
                continue
            part = part_of(rel)
            split[part].append(text)
            c = chars.setdefault(rel.split("/")[0], [0, 0])
            c[0] += 1
            c[1] += len(text.encode())
        split["source"] = [t for t in pool.imap(source, source_files(args.html), chunksize=16)
                           if len(t) > 400]
    split["source"].append(release_notes(os.path.join(args.html, "releases.md")))
    info = {"pages": len(jobs), "duplicate_chars_dropped": seen.dropped,
            "by_part": {k: {"documents": a, "bytes": b} for k, (a, b) in chars.items()}}
    for part, docs in split.items():
        data = "\0".join(docs).encode()
        with open(os.path.join(args.out, part + ".txt"), "wb") as f:
            f.write(data)
        info[part] = {"documents": len(docs), "bytes": sum(len(d.encode()) for d in docs),
                      "sha256": hashlib.sha256(data).hexdigest()}
    with open(os.path.join(args.out, "corpus.json"), "w") as f:
        json.dump(info, f, indent=1)
    print(json.dumps(info, indent=1))


if __name__ == "__main__":
    main()
