"""Turns Metal Shading Language into the C++ that shim/msl.h completes.

Works on tokens of preprocessed text and rewrites only what a header cannot express:
  1. a kernel's signature: [[buffer(n)]], [[thread_position_in_grid]] … become a C entry for each kernel, or for each
     [[host_name]] instantiation, that fetches the arguments. No type is parsed: adaptors in abi.h convert;
  2. `threadgroup T x[N];` in a body becomes a reference into the threadgroup's arena;
  3. `constant T c [[function_constant(n)]];` becomes a constant given on the command line (-D MSL_FC_n=…);
  4. float4(…), vec<T, N>(…), (float4)x, 1.0h and 1.0bf, which C++ lacks; every other [[attribute]] is dropped;
  5. `#pragma METAL fp …` becomes clang's own.
"""
import re

SCALARS = "float half bfloat int uint short ushort char uchar long ulong bool".split()
VECTORS = {s + str(n) for s in SCALARS for n in (2, 3, 4)}
TOKEN = re.compile(
    r'''(?P<directive>^\#[^\n]*$)|(?P<space>[ \t\n\r\f\v]+)|(?P<comment>//[^\n]*|/\*.*?\*/)'''
    r'''|(?P<string>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')'''
    r'''|(?P<number>\.?[0-9](?:[eEpP][+-]|[A-Za-z0-9_.'])*)|(?P<name>[A-Za-z_]\w*)'''
    r'''|(?P<op><<=|>>=|->\*|\.\.\.|::|->|\+\+|--|&&|\|\||[-+*/%&|^=!<>]=|<<|[^\sA-Za-z0-9_])''', re.M | re.S)
# Kernel parameters by attribute: the member of abi.h's Args that holds them.
POSITIONS = {
    "thread_position_in_grid": "tpig", "thread_position_in_threadgroup": "tpit",
    "threadgroup_position_in_grid": "gpig", "threads_per_threadgroup": "tpt", "threads_per_grid": "tpg",
    "threadgroups_per_grid": "gpg", "dispatch_threads_per_threadgroup": "tpt",
    "thread_index_in_threadgroup": "tiit", "thread_index_in_simdgroup": "lane",
    "simdgroup_index_in_threadgroup": "sg", "simdgroups_per_threadgroup": "nsg", "threads_per_simdgroup": "spw",
    "thread_execution_width": "spw", "dispatch_simdgroups_per_threadgroup": "nsg", "thread_index_in_quadgroup": "quad",
}
# What makes a thread wait for others.
MOST_THREADS = re.compile(r"max_total_threads_per_threadgroup\s*\(([^()]*)\)")
WAITS = re.compile(r"\b(threadgroup_barrier|simdgroup_\w+|simd_\w+|quad_\w+)\b")


class Token:
    __slots__ = ("kind", "text", "line")

    def __init__(self, kind, text, line):
        self.kind, self.text, self.line = kind, text, line


class Kernel:
    """A kernel: its parameters as ((kind, index or position), whether it is a pointer, text)."""

    def __init__(self, name, line, template):
        self.name, self.line, self.template, self.params, self.threads = name, line, template, [], "1024"


class Lowered:
    """`body`: C++; `entries`: (host name, text of the C entry, C++ for a bit of each buffer, the same for those that it may write, C++ for the most
    threads of a threadgroup); `problems`: (line, message)."""

    def __init__(self, body, entries, kernels, problems, waits):
        self.body, self.entries, self.kernels = body, entries, kernels
        self.problems, self.waits = problems, waits


def tokenize(source):
    out, line = [], 1
    for m in TOKEN.finditer(source):
        kind, text = m.lastgroup, m.group()
        if kind == "directive":
            at = re.match(r'#\s*(?:line\s+)?(\d+)\s+"', text)
            if at:
                line = int(at[1]) - 1
        out.append(Token("space" if kind == "comment" else kind, " " if kind == "comment" and "\n" not in text else text, line))
        line += text.count("\n")
    return out


def significant(token):
    return token.kind not in ("space", "directive")


def after(tokens, i):
    """Index of the next significant token."""
    i += 1
    while i < len(tokens) and not significant(tokens[i]):
        i += 1
    return i


def before(tokens, i):
    i -= 1
    while i >= 0 and not significant(tokens[i]):
        i -= 1
    return i


def match(tokens, i, opening, closing):
    depth = 0
    while i < len(tokens):
        if tokens[i].text == opening:
            depth += 1
        elif tokens[i].text == closing:
            depth -= 1
            if depth == 0:
                return i
        i += 1
    raise SyntaxError(f"unbalanced {opening}")


def match_angle(tokens, i):
    """The end of template arguments that begin at `<`; None where it is a comparison."""
    depth = parens = 0
    for j in range(i, min(i + 400, len(tokens))):
        s = tokens[j].text
        if s in "([{":
            parens += 1
        elif s in ")]}":
            parens -= 1
            if parens < 0:
                return None
        elif parens == 0 and s == "<":
            depth += 1
        elif parens == 0 and s == ">":
            depth -= 1
            if depth == 0:
                return j
        elif s in (";", "&&", "||"):
            return None
    return None


def text_of(tokens):
    return "".join(t.text for t in tokens if t.kind != "directive").strip()


def split_commas(tokens):
    parts, current, depth, i = [], [], 0, 0
    while i < len(tokens):
        t = tokens[i]
        if t.kind == "op" and t.text in "([{":
            depth += 1
        elif t.kind == "op" and t.text in ")]}":
            depth -= 1
        elif t.text == "<" and depth == 0:
            end = match_angle(tokens, i)
            if end is not None:
                current += tokens[i:end + 1]
                i = end + 1
                continue
        if t.text == "," and depth == 0:
            parts.append(current)
            current = []
        else:
            current.append(t)
        i += 1
    if any(significant(t) for t in current) or parts:
        parts.append(current)
    return parts


def is_attribute(tokens, i):
    return tokens[i].text == "[" and i + 1 < len(tokens) and tokens[i + 1].text == "["


def without_attributes(tokens):
    """The tokens without [[…]], and the attributes' texts."""
    out, attributes, i = [], [], 0
    while i < len(tokens):
        if is_attribute(tokens, i):
            end = match(tokens, i, "[", "]")
            attributes += [text_of(p) for p in split_commas(tokens[i + 2:end - 1])]
            i = end + 1
        else:
            out.append(tokens[i])
            i += 1
    return out, attributes


def lower(source, lint):
    """Lowers preprocessed text. `lint(tokens, kernels)` names what MSL forbids and C++ allows, or is None."""
    tokens = tokenize(source)
    problems = []
    waits = bool(WAITS.search(source))
    literals(tokens)
    kernels, instances = signatures(tokens, problems)
    function_constants(tokens)
    tokens, _ = without_attributes(tokens)
    if lint:
        problems += lint(tokens, kernels)
    threadgroup_variables(tokens, problems)
    constructors(tokens)
    pragmas(tokens)
    entries = []
    wanted = [(k.name, k, k.name, "") for k in kernels.values() if not k.template]
    wanted += [(host, kernels[name], name, args) for host, name, args in instances if name in kernels]
    for host, kernel, name, args in wanted:
        # The indices may be sums.
        buffers = [(f"1u << ({index})", not re.search(r"\b(const|constant)\b", text)) for (kind, index), _, text in kernel.params if kind == "buf"]
        written = " | ".join(bit for bit, writes in buffers if writes) or "0"
        buffers = " | ".join(bit for bit, _ in buffers) or "0"
        entries.append((host, entry(f"msl_entry_{len(entries)}", kernel, name + args), buffers, written, kernel.threads))
    return Lowered("".join(t.text for t in tokens), entries, kernels, problems, waits)


def entry(symbol, kernel, called):
    """The C function that fetches a kernel's arguments."""
    args = []
    for (kind, index), pointer, _ in kernel.params:
        if kind == "position":
            args.append(f"msl_rt::Pos{{c->{index}}}")
        else:
            args.append(f"msl_rt::{'Ptr' if pointer else 'Ref'}{{c->{kind}[{index}]}}")
    return f"static void {symbol}(const msl_rt::Args *c) {{ {called}({', '.join(args)}); }}"


def literals(tokens):
    for t in tokens:
        if t.kind == "number" and not t.text.startswith(("0x", "0X")):
            m = re.fullmatch(r"([0-9.]+(?:[eE][+-]?\d+)?)(h|H|bf|BF)", t.text)
            if m:
                dot = "" if "." in m[1] or "e" in m[1] else "."
                t.text = f"(({'half' if m[2] in 'hH' else 'bfloat'}){m[1]}{dot}f)"


def signatures(tokens, problems):
    """Rewrites kernels' parameter lists. Gives the kernels, and the explicit instantiations of templates."""
    kernels, instances, i = {}, [], 0
    while i < len(tokens):
        t = tokens[i]
        attribute = is_attribute(tokens, i) and re.match(
            r"kernel\b", text_of(tokens[i + 2:match(tokens, i, "[", "]") - 1]))
        if not (t.kind == "name" and t.text == "kernel") and not attribute:
            i += 1
            continue
        start = i
        i = match(tokens, i, "[", "]") + 1 if attribute else i + 1
        # `template [[host_name("x")]]` before it is an explicit instantiation.
        b, host = before(tokens, start), None
        if b >= 0 and tokens[b].text == "]":
            j = b
            while not is_attribute(tokens, j):
                j -= 1
            m = re.search(r'host_name\s*\(\s*((?:"[^"]*"\s*)+)', text_of(tokens[j:b + 1]))
            if m:
                host = "".join(re.findall(r'"([^"]*)"', m[1]))
            b = before(tokens, j)
        instance = b >= 0 and tokens[b].text == "template"
        j = i
        while tokens[j].text not in ("(", ";") or (
                tokens[j].text == "(" and tokens[before(tokens, j)].text in ("decltype", "__attribute__")):
            if tokens[j].text == "(":
                j = match(tokens, j, "(", ")") + 1
            else:
                angle = match_angle(tokens, j) if tokens[j].text == "<" else None
                j = angle + 1 if angle is not None else j + 1
        head = [x for x in tokens[i:j] if significant(x) ]
        name, arguments = declared_name(head)
        if instance:
            instances.append((host or name, name, arguments))
            i = j
            continue
        if tokens[j].text == ";":
            i = j
            continue
        if "void" not in [x.text for x in head[:-1]]:
            problems.append((t.line, f"kernel {name} must return void"))
        end = match(tokens, j, "(", ")")
        kernels[name] = kernel = Kernel(name, t.line, b >= 0 and tokens[b].text == ">")
        most = MOST_THREADS.search(attributes_before(tokens, start) + (text_of(tokens[start:i]) if attribute else ""))
        kernel.threads = most[1] if most else "1024"
        out = [parameter(kernel, p, problems) for p in split_commas(tokens[j + 1:end])]
        bound = [p[0] for p in kernel.params if p[0][0] != "position"]
        for place in {p for p in bound if bound.count(p) > 1}:
            problems.append((t.line, f"kernel {name}: {place[0]}({place[1]}) bound twice"))
        tokens[j + 1:end] = [Token("raw", ", ".join(out), t.line)]
        i = j
    return kernels, instances


def attributes_before(tokens, i):
    """The text of the attributes right before a token."""
    end = before(tokens, i)
    if end < 0 or tokens[end].text != "]":
        return ""
    start = end
    while start >= 0 and not is_attribute(tokens, start):
        start -= 1
    return text_of(tokens[max(start, 0):end + 1])


def declared_name(head):
    """The last name of a declarator, and the template arguments after it."""
    if head[-1].text != ">":
        return head[-1].text, ""
    depth, q = 0, len(head) - 1
    while True:
        depth += (head[q].text == ">") - (head[q].text == "<")
        if depth == 0:
            break
        q -= 1
    return head[q - 1].text, "".join((" " if x.kind == "name" else "") + x.text for x in head[q:])


def parameter(kernel, tokens, problems):
    """Notes a parameter of a kernel; its text without attributes."""
    body, attributes = without_attributes(tokens)
    words = [x.text for x in body if significant(x)]
    pointer, reference = "*" in words, "&" in words
    place = None
    for a in attributes:
        m = re.match(r"(\w+)\s*(?:\((.*)\))?", a, re.S)
        if m[1] == "buffer":
            place = ("buf", int(m[2]) if m[2].isdigit() else m[2])
        elif m[1] == "threadgroup":
            place = ("tgm", int(m[2]))
        elif m[1] in POSITIONS:
            place = ("position", POSITIONS[m[1]])

    def bad(what):
        problems.append((kernel.line, f"kernel {kernel.name}: {what}"))

    if place is None:
        if not (pointer or reference):
            bad(f"parameter '{text_of(body)}' has no attribute")
        taken = [p[0][1] for p in kernel.params if p[0][0] == "buf" and isinstance(p[0][1], int)]
        place = ("tgm", 0) if "threadgroup" in words else ("buf", max(taken, default=-1) + 1)
    if place[0] == "buf":
        if not (pointer or reference):
            bad(f"buffer parameter '{text_of(body)}' must be a pointer or reference")
        if not {"device", "constant"} & set(words):
            bad(f"buffer parameter '{text_of(body)}' must be in the device or constant address space")
        if isinstance(place[1], int) and place[1] > 30:
            bad(f"there is no buffer({place[1]}): the last is buffer(30)")
    kernel.params.append((place, pointer, text_of(body)))
    return "".join(x.text for x in body)


def function_constants(tokens):
    i = 0
    while i < len(tokens):
        if is_attribute(tokens, i):
            end = match(tokens, i, "[", "]")
            m = re.match(r"function_constant\s*\(\s*(\d+)\s*\)", text_of(tokens[i + 2:end - 1]))
            if m:
                b = i
                while tokens[b].text not in (";", "}", "{") and tokens[b].kind != "directive":
                    b -= 1
                declared = [x for x in tokens[b + 1:i] if significant(x)]
                ty = " ".join(x.text for x in declared[:-1] if x.text not in ("constant", "const"))
                end = i
                while tokens[end].text != ";":
                    end += 1
                macro = f"MSL_FC_{m[1]}"
                code = (f"\n#ifndef {macro}\n#define {macro} 0\n#endif\n"
                        f" static constexpr {ty} {declared[-1].text} = {ty}({macro})")
                tokens[b + 1:end] = [Token("raw", code, tokens[i].line)]
                i = b + 1
                continue
        i += 1


def threadgroup_variables(tokens, problems):
    i, slot = 0, 0
    while i < len(tokens):
        # A variable may ask for more alignment than its type has: alignas(16) threadgroup float x[9];
        first, least = i, "1"
        if tokens[i].kind == "name" and tokens[i].text == "threadgroup":
            back = [i]
            for _ in range(5):
                back.append(before(tokens, back[-1]))
            if [tokens[b].text for b in (back[4], back[3], back[1])] == ["alignas", "(", ")"]:
                first, least = back[4], tokens[back[2]].text
        starts = tokens[i].kind == "name" and tokens[i].text == "threadgroup" and \
            tokens[before(tokens, first)].text.rstrip()[-1:] in ("{", "}", ";")
        if not starts:
            i += 1
            continue
        j, depth, pointer = i, 0, False
        while not (tokens[j].text == ";" and depth == 0):
            s = tokens[j].text
            if s in "([{":
                depth += 1
            elif s in ")]}":
                depth -= 1
            elif depth == 0 and s in ("*", "&"):
                pointer = True
            elif depth == 0 and s == "=":
                if not pointer:
                    problems.append((tokens[i].line, "threadgroup variables cannot have an initialiser"))
                break
            j += 1
        if not pointer and tokens[j].text == ";":
            code, ty = "", ""
            for n, part in enumerate(split_commas(tokens[i + 1:j])):
                dims = next((m for m, x in enumerate(part) if x.text == "["), len(part))
                at = before(part, dims)
                if n == 0:
                    ty = text_of(part[:at])
                name = part[at].text
                code += (f"typedef {ty} {name}_tgt_ {text_of(part[dims:])}; "
                         f"static_assert(sizeof({name}_tgt_) <= 32768, \"threadgroup memory\"); "
                         f"threadgroup {name}_tgt_ &{name} = *(threadgroup {name}_tgt_ *)(ulong)"
                         f"msl_rt_tg_slot({slot}, sizeof({name}_tgt_), "
                         f"alignof({name}_tgt_) > {least} ? alignof({name}_tgt_) : {least}); ")
                slot += 1
            lines = sum(x.text.count("\n") for x in tokens[i:j])
            tokens[first:j + 1] = [Token("raw", code + "\n" * lines, tokens[i].line)]
            i = first
        i += 1


def constructors(tokens):
    """Vector constructors and casts."""
    spaces = ("operator", "device", "thread", "threadgroup", "constant", "const")
    i = 0
    while i < len(tokens):
        t = tokens[i]
        if t.kind == "name" and t.text in VECTORS:
            p, n = before(tokens, i), after(tokens, i)
            if tokens[p].text == "::" and tokens[before(tokens, p)].text == "metal":
                tokens[p].text = tokens[before(tokens, p)].text = ""
                p = before(tokens, before(tokens, p))
            following = tokens[n].text if n < len(tokens) else ""
            if following == "(" and tokens[p].text not in spaces:
                if tokens[after(tokens, n)].text not in ("&", "*"):
                    t.text = f"metal::msl_make<{t.text}>"
            elif tokens[p].text == "(" and following == ")":
                q = tokens[before(tokens, p)]
                call = q.kind == "name" and q.text not in ("return", "else") or q.text in (")", "]", ">")
                operand = tokens[after(tokens, n)]
                if not call and (operand.kind in ("name", "number") or operand.text in ("(", "*", "-", "&")):
                    tokens[p].text = tokens[n].text = ""
                    t.text = f"metal::msl_cast<{t.text}>{{}}->*"
        elif t.kind == "name" and t.text == "vec":
            n = after(tokens, i)
            end = match_angle(tokens, n) if tokens[n].text == "<" else None
            if end is not None:
                call = after(tokens, end)
                if tokens[call].text == "(" and tokens[after(tokens, call)].text not in ("&", "*"):
                    p = before(tokens, i)
                    if tokens[p].text == "::":
                        tokens[p].text = tokens[before(tokens, p)].text = ""
                    ty = "metal::" + text_of(tokens[i:end + 1])
                    tokens[i:end + 1] = [Token("raw", f"metal::msl_make<{ty}>", t.line)]
        i += 1


def pragmas(tokens):
    for t in tokens:
        if t.kind == "directive":
            m = re.match(r"#\s*pragma\s+METAL\s+fp\s+contract\s*\(\s*(\w+)\s*\)", t.text)
            if m:
                t.text = f"#pragma clang fp contract({m[1]})"
