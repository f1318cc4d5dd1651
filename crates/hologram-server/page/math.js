// A subset of TeX as MathML, which browsers draw themselves. What is not known stays as its text.

const SPACE = "http://www.w3.org/1998/Math/MathML";
const make = (name, ...children) => {
  const node = document.createElementNS(SPACE, name);
  node.append(...children);
  return node;
};

const words = (text) => text.trim().split(/\s+/);
const pairs = (text) => Object.fromEntries(words(text).map((pair) => [pair.slice(0, -1).replace(/:$/, ""), [...pair].pop()]));

const LETTERS = pairs(`alpha:α beta:β gamma:γ delta:δ epsilon:ϵ varepsilon:ε zeta:ζ eta:η theta:θ vartheta:ϑ iota:ι kappa:κ
  lambda:λ mu:μ nu:ν xi:ξ pi:π varpi:ϖ rho:ρ varrho:ϱ sigma:σ varsigma:ς tau:τ upsilon:υ phi:ϕ varphi:φ chi:χ psi:ψ omega:ω
  Gamma:Γ Delta:Δ Theta:Θ Lambda:Λ Xi:Ξ Pi:Π Sigma:Σ Upsilon:Υ Phi:Φ Psi:Ψ Omega:Ω infty:∞ partial:∂ nabla:∇ ell:ℓ hbar:ℏ
  Re:ℜ Im:ℑ aleph:ℵ emptyset:∅ varnothing:∅ angle:∠ triangle:△ square:□ blacksquare:■ bot:⊥ top:⊤ degree:° imath:ı jmath:ȷ`);
const SIGNS = pairs(`times:× cdot:⋅ div:÷ pm:± mp:∓ ast:∗ star:⋆ circ:∘ bullet:∙ oplus:⊕ otimes:⊗ odot:⊙ wedge:∧ vee:∨ land:∧
  lor:∨ neg:¬ lnot:¬ cap:∩ cup:∪ setminus:∖ leq:≤ le:≤ geq:≥ ge:≥ neq:≠ ne:≠ ll:≪ gg:≫ approx:≈ equiv:≡ sim:∼ simeq:≃ cong:≅
  propto:∝ in:∈ notin:∉ ni:∋ subset:⊂ supset:⊃ subseteq:⊆ supseteq:⊇ to:→ rightarrow:→ leftarrow:← gets:← leftrightarrow:↔
  Rightarrow:⇒ Leftarrow:⇐ Leftrightarrow:⇔ implies:⇒ iff:⇔ mapsto:↦ uparrow:↑ downarrow:↓ longrightarrow:⟶ forall:∀ exists:∃
  nexists:∄ mid:∣ parallel:∥ perp:⊥ therefore:∴ because:∵ ldots:… dots:… cdots:⋯ vdots:⋮ ddots:⋱ colon:: prime:′ models:⊨
  vdash:⊢ langle:⟨ rangle:⟩ lfloor:⌊ rfloor:⌋ lceil:⌈ rceil:⌉ lbrace:{ rbrace:} vert:| Vert:‖ lVert:‖ rVert:‖ lvert:| rvert:|`);
const LARGE = pairs("sum:∑ prod:∏ coprod:∐ bigcup:⋃ bigcap:⋂ bigoplus:⨁ bigotimes:⨂ bigvee:⋁ bigwedge:⋀");
const INTEGRALS = pairs("int:∫ iint:∬ iiint:∭ oint:∮");
const NAMES = new Set(words(`sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln lg exp det dim ker deg arg gcd Pr
  hom mod`));
const LIMITS = new Set(words("lim limsup liminf max min sup inf argmax argmin"));
const ACCENTS = pairs("hat:^ widehat:^ bar:¯ overline:¯ vec:→ dot:˙ ddot:¨ tilde:~ widetilde:~ overbrace:⏞ check:ˇ");
const UNDER = pairs("underline:_ underbrace:⏟");
const STYLES = {
  mathbf: "bold", boldsymbol: "bold-italic", bm: "bold-italic", mathbb: "double-struck", mathcal: "script", mathscr: "script",
  mathfrak: "fraktur", mathrm: "normal", mathsf: "sans-serif", mathtt: "monospace", mathit: "italic",
};
const SPACES = { ",": ".17em", ":": ".22em", ";": ".28em", "!": "0", " ": ".33em", quad: "1em", qquad: "2em" };
const FENCES = { matrix: "", pmatrix: "()", bmatrix: "[]", Bmatrix: "{}", vmatrix: "||", Vmatrix: "‖‖", cases: "{ " };
/** The first code points of alphabets in Unicode, for styles that MathML Core has only as characters. */
const ALPHABETS = { "double-struck": [0x1d538, 0x1d552, 0x1d7d8], script: [0x1d49c, 0x1d4b6], fraktur: [0x1d504, 0x1d51e],
  bold: [0x1d400, 0x1d41a, 0x1d7ce], "bold-italic": [0x1d468, 0x1d482, 0x1d7ce], "sans-serif": [0x1d5a0, 0x1d5ba, 0x1d7e2],
  monospace: [0x1d670, 0x1d68a, 0x1d7f6] };
const HOLES = { "𝔺": "ℂ", "𝔿": "ℍ", "𝕅": "ℕ", "𝕇": "ℙ", "𝕈": "ℚ", "𝕉": "ℝ", "𝕑": "ℤ", "𝒝": "ℬ", "𝒠": "ℰ", "𝒡": "ℱ", "𝒣": "ℋ", "𝒤": "ℐ",
  "𝒧": "ℒ", "𝒨": "ℳ", "𝒭": "ℛ", "𝒺": "ℯ", "𝒼": "ℊ", "𝓄": "ℴ", "𝔆": "ℭ", "𝔋": "ℌ", "𝔌": "ℑ", "𝔕": "ℜ", "𝔝": "ℨ" };

function styled(text, style) {
  const alphabet = ALPHABETS[style];
  if (!alphabet) return text;
  const letter = (c) => {
    const code = c.codePointAt(0);
    const [from, first] = code >= 97 && code < 123 ? [97, alphabet[1]] : code >= 65 && code < 91 ? [65, alphabet[0]]
      : code >= 48 && code < 58 && alphabet[2] ? [48, alphabet[2]] : [0, 0];
    if (!first) return c;
    const mapped = String.fromCodePoint(first + code - from);
    return HOLES[mapped] ?? mapped;
  };
  return [...text].map(letter).join("");
}

/** A formula. */
export function math(tex, display) {
  const source = tex.slice(0, 4000);
  const node = make("math", new Parser(source).row(""));
  if (display) node.setAttribute("display", "block");
  node.setAttribute("aria-label", source);
  return node;
}

class Parser {
  constructor(tex) {
    this.tokens = tex.match(/\\(?:[A-Za-z]+|[^])|\d+(?:\.\d+)?|[^]/gu) ?? [];
    this.at = 0;
    this.depth = 0;
    this.style = null;
  }

  peek() { return this.tokens[this.at]; }

  next() {
    const token = this.tokens[this.at];
    this.at += 1;
    return token;
  }

  skipSpace() { while (this.at < this.tokens.length && /^\s$/.test(this.peek())) this.at += 1; }

  /** Up to one of the tokens `ends`, which stays, or the end. */
  row(...ends) {
    const row = make("mrow");
    this.depth += 1;
    for (;;) {
      this.skipSpace();
      const token = this.peek();
      if (token === undefined || ends.includes(token) || this.depth > 60) break;
      const node = this.scripted();
      if (node) row.append(node);
    }
    this.depth -= 1;
    return row.childNodes.length === 1 ? row.firstChild : row;
  }

  /** An atom with what is above and below it. */
  scripted() {
    const token = this.peek();
    const name = token[0] === "\\" ? token.slice(1) : "";
    let base = "^_'".includes(token) ? make("mrow") : this.atom();
    if (!base) return null;
    let [sub, sup] = [null, null];
    for (;;) {
      this.skipSpace();
      const mark = this.peek();
      if (mark === "\\limits" || mark === "\\nolimits") this.at += 1;
      else if (mark === "_" && !sub) { this.at += 1; sub = this.argument(); }
      else if (mark === "^" && !sup) { this.at += 1; sup = this.argument(); }
      else if (mark === "'") {
        let primes = "";
        while (this.peek() === "'") { primes += "′"; this.at += 1; }
        sup = sup ? make("mrow", make("mo", primes), sup) : make("mo", primes);
      } else break;
    }
    const around = Object.hasOwn(LARGE, name) || LIMITS.has(name) || name === "underbrace" || name === "overbrace";
    if (sub && sup) base = make(around ? "munderover" : "msubsup", base, sub, sup);
    else if (sub) base = make(around ? "munder" : "msub", base, sub);
    else if (sup) base = make(around ? "mover" : "msup", base, sup);
    return base;
  }

  /** A group in braces, or one atom. */
  argument() {
    this.skipSpace();
    if (this.peek() === undefined) return make("mrow");
    if (this.peek() === "{") {
      this.at += 1;
      const row = this.row("}");
      this.at += 1;
      return row;
    }
    // Of a number only the first digit.
    if (/^\d\d/.test(this.peek())) {
      const number = this.next();
      this.tokens.splice(this.at, 0, number.slice(1));
      return make("mn", number[0]);
    }
    return this.atom() ?? make("mrow");
  }

  /** The text of a group in braces. */
  text() {
    this.skipSpace();
    if (this.peek() !== "{") return this.next() ?? "";
    let [text, depth] = ["", 0];
    while (this.at < this.tokens.length) {
      const token = this.next();
      if (token === "{") depth += 1;
      if (token === "}") depth -= 1;
      if (depth === 0) break;
      if (!(token === "{" && depth === 1)) text += token.length === 2 && token[0] === "\\" ? token[1] : token;
    }
    return text;
  }

  fence() {
    this.skipSpace();
    const token = this.next() ?? ".";
    const sign = SIGNS[token.slice(1)] ?? token.replace("\\|", "‖").replace("\\", "");
    const node = make("mo", sign === "." ? "" : sign);
    node.setAttribute("stretchy", "true");
    return node;
  }

  atom() {
    const token = this.next();
    if (token === "{") {
      const row = this.row("}");
      this.at += 1;
      return row;
    }
    if (token === "}" || token === "&") return null;
    if (/^\d/.test(token)) return make("mn", styled(token, this.style));
    if (/^\p{L}$/u.test(token)) {
      const node = make("mi", styled(token, this.style));
      if (this.style === "normal") node.setAttribute("mathvariant", "normal");
      return node;
    }
    if (token[0] !== "\\") return make("mo", token === "-" ? "−" : token);
    return this.command(token.slice(1));
  }

  command(name) {
    const own = (table) => Object.hasOwn(table, name);
    if (own(LETTERS)) return make("mi", LETTERS[name]);
    if (own(SIGNS)) return make("mo", SIGNS[name]);
    if (own(LARGE)) return make("mo", LARGE[name]);
    if (own(INTEGRALS)) return make("mo", INTEGRALS[name]);
    if (NAMES.has(name) || LIMITS.has(name)) return make("mi", name);
    if (own(SPACES)) {
      const space = make("mspace");
      space.setAttribute("width", SPACES[name]);
      return space;
    }
    if (own(ACCENTS) || own(UNDER)) {
      const mark = make("mo", own(ACCENTS) ? ACCENTS[name] : UNDER[name]);
      const node = make(own(ACCENTS) ? "mover" : "munder", this.argument(), mark);
      node.setAttribute(own(ACCENTS) ? "accent" : "accentunder", "true");
      return node;
    }
    if (Object.hasOwn(STYLES, name)) {
      const outer = this.style;
      this.style = STYLES[name];
      const node = this.argument();
      this.style = outer;
      return node;
    }
    switch (name) {
      case "frac": case "dfrac": case "tfrac": case "cfrac": return make("mfrac", this.argument(), this.argument());
      case "binom": {
        const fraction = make("mfrac", this.argument(), this.argument());
        fraction.setAttribute("linethickness", "0");
        return make("mrow", make("mo", "("), fraction, make("mo", ")"));
      }
      case "sqrt": {
        this.skipSpace();
        if (this.peek() !== "[") return make("msqrt", this.argument());
        this.at += 1;
        const index = this.row("]");
        this.at += 1;
        return make("mroot", this.argument(), index);
      }
      case "text": case "textbf": case "textit": case "textrm": case "mbox": return make("mtext", this.text());
      case "operatorname": return make("mi", this.text());
      case "boxed": return make("mrow", this.argument());
      case "left": {
        const open = this.fence();
        const inner = this.row("\\right");
        this.at += 1;
        return make("mrow", open, inner, this.fence());
      }
      case "big": case "Big": case "bigg": case "Bigg": case "bigl": case "bigr": case "Bigl": case "Bigr": return this.fence();
      case "begin": return this.environment(this.text());
      case "overset": case "stackrel": {
        const above = this.argument();
        return make("mover", this.argument(), above);
      }
      case "underset": {
        const below = this.argument();
        return make("munder", this.argument(), below);
      }
      case "{": case "}": case "%": case "$": case "#": case "&": case "_": return make("mo", name);
      case "|": return make("mo", "‖");
      case "\\": case "displaystyle": case "textstyle": case "nonumber": case "limits": case "nolimits": return null;
      default: return make("mtext", "\\" + name);
    }
  }

  environment(name) {
    const table = make("mtable");
    if (name === "array") this.text();
    let row = make("mtr");
    for (;;) {
      row.append(make("mtd", this.row("&", "\\\\", "\\end")));
      const end = this.next();
      if (end === "&") continue;
      table.append(row);
      row = make("mtr");
      if (end !== "\\\\") break;
      this.skipSpace();
      // A line break at the end begins no row.
      if (this.peek() === "\\end") { this.at += 1; break; }
    }
    this.text();
    const fences = FENCES[name.replace("*", "")] ?? "";
    if (!fences) return table;
    const fence = (sign) => {
      const node = make("mo", sign.trim());
      node.setAttribute("stretchy", "true");
      return node;
    };
    return make("mrow", fence([...fences][0]), table, fence([...fences][1]));
  }
}
