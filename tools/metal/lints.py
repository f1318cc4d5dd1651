"""What clang's C++ accepts and the Metal Shading Language does not, found on tokens.

Newer versions of Metal allow some of it (lambdas, recursion, function pointers); the kernels here do without.
"""
import re

from lowering import SCALARS, VECTORS, significant

SPACES = {"device", "threadgroup", "constant", "thread"}
BANNED = {"double": "double"} | {w: w for w in (
    "new delete try throw catch virtual dynamic_cast typeid thread_local goto asm __asm__").split()}
TYPES = VECTORS | set(SCALARS) | {"void", "size_t", "signed", "unsigned", "auto"} | {
    f"{s}int{n}_t" for s in ("", "u") for n in (8, 16, 32, 64)}
# A first word that says a statement at program scope declares no variable.
NO_VARIABLE = ("using", "typedef", "struct", "template", "static_assert", "enum", "union", "class", "extern", "friend")


def lint(dialect):
    """The function that finds problems; with `dialect` also what CUDA reads otherwise."""
    def run(tokens, kernels):
        tokens = [t for t in tokens if significant(t)]
        return words(tokens, dialect) + scopes(tokens, kernels) + pointers(tokens)
    return run


def words(tokens, dialect):
    out = []
    for t in tokens:
        if t.kind == "name" and t.text in BANNED:
            out.append((t.line, f"MSL has no {t.text}"))
        elif t.kind == "number" and not t.text.startswith(("0x", "0X")):
            if re.fullmatch(r"[0-9.]+([eE][+-]?\d+)?[lL]", t.text) and "." in t.text:
                out.append((t.line, "long double literal"))
            if dialect and re.fullmatch(r"(\d+\.\d*|\.\d+|\d+(?=[eE]))([eE][+-]?\d+)?", t.text):
                out.append((t.line, f"literal {t.text} is float in MSL and double in CUDA: write {t.text}f"))
    return out


def scopes(tokens, kernels):
    """What depends on the scope that a token stands in."""
    out, stack, start, function, in_kernel, i = [], ["namespace"], 0, None, False, 0
    declared = [t.text for p, t, n in zip(tokens, tokens[1:], tokens[2:]) if t.kind == "name" and n.text == "(" and (
        p.kind == "name" and p.text not in ("return", "else") or p.text in (">", "*", "&", ":", "::"))]
    while i < len(tokens):
        t, top = tokens[i], stack[-1]
        inside = top in ("function", "block")
        if t.text == "{":
            statement = [x.text for x in tokens[start:i]]
            previous = tokens[i - 1].text if i else ""
            if inside:
                stack.append("block")
            elif {"struct", "union", "enum", "class"} & set(statement) and ")" not in previous:
                stack.append("struct")
            elif "namespace" in statement or statement[:1] == ["extern"]:
                stack.append("namespace")
            elif previous in (")", "const"):
                q = next((n for n in range(start, i) if tokens[n].text == "(" and tokens[n - 1].kind == "name"
                          and tokens[n - 1].text not in ("decltype", "enable_if")), None)
                function = tokens[q - 1].text if q else None
                in_kernel = function in kernels and tokens[start].line - 3 <= kernels[function].line <= t.line
                stack.append("function")
            elif "=" in statement:
                stack.append("init")
            elif i and (tokens[i - 1].kind == "raw" or ")" in statement):
                function = next((k for k in kernels if k in statement), None)
                in_kernel = bool(function)
                stack.append("function")
            else:
                stack.append("init")
            if stack[-1] != "init":
                start = i + 1
        elif t.text == "}":
            if len(stack) > 1 and stack.pop() != "init":
                start = i + 1
        elif t.text == ";":
            statement = [x.text for x in tokens[start:i]]
            if top == "namespace" and len(statement) > 1 and tokens[start].kind == "name" and \
                    statement[0] not in NO_VARIABLE and "constant" not in statement and "(" not in statement:
                named = " ".join(statement[:6])
                out.append((t.line, f"program-scope variable must be in the constant address space: {named}"))
            start = i + 1
        elif inside and t.text == "(" and function and tokens[i - 1].text == function and \
                tokens[i - 2].text not in (".", "->", "::", "&") and declared.count(function) == 1:
            out.append((t.line, f"recursion: {function}"))
        elif inside and t.text == "static" and not {"constant", "constexpr"} & {x.text for x in tokens[i:i + 4]}:
            out.append((t.line, "static local variable"))
        elif inside and t.text == "threadgroup" and not in_kernel and tokens[i - 1].text in ("{", "}", ";"):
            j, depth, pointer = i, 0, False
            while tokens[j].text not in (";", "="):
                depth += (tokens[j].text == "[") - (tokens[j].text == "]")
                pointer |= depth == 0 and tokens[j].text in ("*", "&")
                j += 1
            if not pointer:
                out.append((t.line, f"threadgroup variable outside a kernel, in {function}"))
        elif inside and t.text == "[" and tokens[i - 1].text in ("=", "(", ",", "return") and \
                i + 1 < len(tokens) and tokens[i + 1].text in ("&", "=", "]"):
            out.append((t.line, "lambda"))
        elif inside and t.text == "(" and i + 4 < len(tokens) and tokens[i - 1].kind == "name" and \
                tokens[i + 1].text == "*" and tokens[i + 2].kind == "name" and \
                [tokens[i + 3].text, tokens[i + 4].text] == [")", "("]:
            out.append((t.line, "function pointer"))
        i += 1
    return out


def pointers(tokens):
    """A declarator `T *x` or `T &x` needs an address space among its specifiers."""
    out = []
    structs = {n.text for t, n in zip(tokens, tokens[1:]) if t.text in ("struct", "typename", "class") and n.kind == "name"}
    for i in range(1, len(tokens) - 1):
        t, previous, following = tokens[i], tokens[i - 1], tokens[i + 1]
        if t.kind != "op" or t.text not in ("*", "&"):
            continue
        if previous.kind != "name" or not (previous.text in TYPES or previous.text in structs or previous.text == "const"):
            continue
        if following.kind != "name" and following.text not in (")", ">", ","):
            continue
        j, specifiers = i - 1, []
        while j >= 0 and tokens[j].text not in (";", "{", "}", "(", ",", "<", ")") and len(specifiers) < 12:
            specifiers.append(tokens[j].text)
            j -= 1
        begins = j >= 0 and tokens[j].text in (";", "{", "}", "(", ",")
        if "auto" in specifiers or previous.text not in TYPES and previous.text != "const" and not begins:
            continue
        # `S * x` may be a product where S is a struct's name and a variable's.
        if previous.text in structs and len(specifiers) == 1 and begins and following.kind == "name" and \
                tokens[i + 2].text not in (",", ")", ";", "=", "["):
            continue
        if not SPACES & set(specifiers):
            named = " ".join(reversed(specifiers))
            out.append((t.line, f"pointer or reference without an address space: {named} {t.text} {following.text}"))
    return out
