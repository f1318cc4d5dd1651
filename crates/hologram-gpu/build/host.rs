//! Parses what a text shares with the host by `HOST(names…)`: numbers, and structures with CUDA's layout.

use super::text::{Result, Text, Token, arguments};

/// A number or a structure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    pub name: String,
    /// The text that declares it.
    pub file: String,
    pub line: u32,
    pub value: Value,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    Number(u64),
    Structure(Structure),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Structure {
    pub bytes: u64,
    pub align: u64,
    pub fields: Vec<Field>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    pub name: String,
    /// `u32`, `f32`, or `u64` for an address; `None` for a type without a Rust counterpart.
    pub rust: Option<&'static str>,
    /// Elements of an array.
    pub count: Option<u64>,
}

/// All shared items of a text, in order.
pub fn items(text: &Text) -> Result<Vec<Item>> {
    let mut out: Vec<Item> = Vec::new();
    for (at, token) in text.tokens.iter().enumerate().filter(|(_, t)| t.is("HOST")) {
        let Some((names, _)) = arguments(&text.tokens[at + 1..]) else { return token.error("HOST names nothing") };
        for name in names {
            let [name] = name else { return token.error("HOST takes names") };
            let value = match structure(text, name)? {
                Some(found) => Value::Structure(found),
                None => Value::Number(number(text, name, 0)?),
            };
            out.push(Item { name: name.text.to_string(), file: token.file.to_string(), line: token.line, value });
        }
    }
    // A size that the text asserts must equal the computed one.
    for at in text.tokens.windows(7).filter(|w| w[0].is("static_assert") && w[2].is("sizeof") && w[6].is("==")) {
        let Some(Item { value: Value::Structure(s), .. }) = out.iter().find(|i| at[4].is(&i.name)) else { continue };
        let said = text.tokens.iter().position(|t| std::ptr::eq(t, &at[6])).and_then(|i| text.tokens.get(i + 1));
        if said.and_then(|t| t.text.parse().ok()) != Some(s.bytes) {
            return at[0].error(format!("{} has {} bytes", at[4].text, s.bytes));
        }
    }
    Ok(out)
}

/// Evaluates a macro, a `constexpr` or an enumerator with a value.
fn number(text: &Text, name: &Token, depth: usize) -> Result<u64> {
    if depth > 16 {
        return name.error(format!("{} is defined by itself", name.text));
    }
    if let Some(found) = text.macros.get(&name.text).filter(|m| m.parameters.is_none()) {
        return expression(text, name, &found.body, depth);
    }
    // `constexpr TYPE A = …, B = …;` and `enum { A = …, B = … };`
    let mut rest = &text.tokens[..];
    while let Some(at) = rest.iter().position(|t| t.is("constexpr") || t.is("enum")) {
        let constants = rest[at].is("constexpr");
        rest = &rest[at + 1..];
        let end = rest.iter().position(|t| t.is(";") || constants && t.is("{")).unwrap_or(rest.len());
        let found = rest[..end].windows(2).position(|w| w[0].text == name.text && w[1].is("="));
        let Some(at) = found else { continue };
        let value = &rest[at + 2..end];
        let comma = value.iter().position(|t| t.is(",") || t.is("}")).unwrap_or(value.len());
        return expression(text, name, &value[..comma], depth);
    }
    name.error(format!("there is no number or structure {}", name.text))
}

/// Evaluates sums, differences, products, quotients and remainders of numbers and names.
pub fn expression(text: &Text, name: &Token, tokens: &[Token], depth: usize) -> Result<u64> {
    let mut at = 0;
    let value = added(text, name, tokens, &mut at, depth)?;
    match tokens.get(at) {
        None => Ok(value),
        Some(other) => other.error(format!("{} is no number: {} is not understood", name.text, other.text)),
    }
}

fn added(text: &Text, name: &Token, tokens: &[Token], at: &mut usize, depth: usize) -> Result<u64> {
    let mut value = multiplied(text, name, tokens, at, depth)?;
    while let Some(sign) = tokens.get(*at).filter(|t| t.is("+") || t.is("-")) {
        *at += 1;
        let other = multiplied(text, name, tokens, at, depth)?;
        let result = if sign.is("+") { value.checked_add(other) } else { value.checked_sub(other) };
        let Some(result) = result else { return sign.error(format!("{} is no size", name.text)) };
        value = result;
    }
    Ok(value)
}

fn multiplied(text: &Text, name: &Token, tokens: &[Token], at: &mut usize, depth: usize) -> Result<u64> {
    let mut value = atom(text, name, tokens, at, depth)?;
    while let Some(sign) = tokens.get(*at).filter(|t| t.is("*") || t.is("/") || t.is("%")) {
        *at += 1;
        let other = atom(text, name, tokens, at, depth)?;
        let result = match &*sign.text {
            "*" => value.checked_mul(other),
            "/" => value.checked_div(other),
            _ => value.checked_rem(other),
        };
        let Some(result) = result else { return sign.error(format!("{} is no size", name.text)) };
        value = result;
    }
    Ok(value)
}

fn atom(text: &Text, name: &Token, tokens: &[Token], at: &mut usize, depth: usize) -> Result<u64> {
    let Some(token) = tokens.get(*at) else { return name.error(format!("{} has no value", name.text)) };
    *at += 1;
    if token.is("(") {
        let value = added(text, name, tokens, at, depth)?;
        *at += 1;
        return Ok(value);
    }
    if token.is_word() {
        return number(text, token, depth + 1);
    }
    let digits = token.text.trim_end_matches(['u', 'U', 'l', 'L']);
    let value = match digits.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => digits.parse(),
    };
    value.or_else(|_| token.error(format!("{} is no number: {} is not understood", name.text, token.text)))
}

/// Size, alignment and Rust name of a type.
fn layout(text: &Text, ty: &Token) -> Result<(u64, u64, Option<&'static str>)> {
    Ok(match &*ty.text {
        "uint" | "unsigned" => (4, 4, Some("u32")),
        "float" => (4, 4, Some("f32")),
        "int" => (4, 4, None),
        "uchar" | "char" | "bool" => (1, 1, None),
        "ushort" | "half" => (2, 2, None),
        "ulong" | "float2" | "uint2" | "int2" => (8, 8, None),
        "float4" | "uint4" => (16, 16, None),
        _ => match structure(text, ty)? {
            Some(s) => (s.bytes, s.align, None),
            None => return ty.error(format!("the size of {} is not known", ty.text)),
        },
    })
}

/// The structure with this name, if there is one.
fn structure(text: &Text, name: &Token) -> Result<Option<Structure>> {
    let tokens = &text.tokens;
    let mut found = None;
    for (at, _) in tokens.iter().enumerate().filter(|(_, t)| t.is("struct")) {
        let (mut next, mut align) = (at + 1, 1);
        if tokens.get(next).is_some_and(|t| t.is("__align__")) {
            let Some((arguments, length)) = arguments(&tokens[next + 1..]) else { continue };
            align = arguments.first().map_or(Ok(1), |a| expression(text, name, a, 0))?;
            next += 1 + length;
        }
        if tokens.get(next).is_some_and(|t| t.text == name.text) && tokens.get(next + 1).is_some_and(|t| t.is("{")) {
            found = Some((align, next + 2));
        }
    }
    let Some((mut align, begin)) = found else { return Ok(None) };
    let Some(length) = tokens[begin..].iter().position(|t| t.is("}")) else { return name.error("it does not end") };
    let (mut bytes, mut fields) = (0u64, Vec::new());
    for line in tokens[begin..begin + length].split(|t| t.is(";")) {
        let mut line = line.iter().filter(|t| !t.is("const")).peekable();
        let Some(mut ty) = line.next() else { continue };
        let long;
        if ty.is("unsigned") && line.peek().is_some_and(|t| t.is("long") || t.is("int")) {
            let words = std::iter::from_fn(|| line.next_if(|t| t.is("long") || t.is("int"))).count();
            if words != 2 {
                return ty.error("of such types unsigned long long is known");
            }
            long = ty.called("ulong");
            ty = &long;
        }
        let declarators: Vec<&Token> = line.collect();
        for declarator in declarators.split(|t| t.is(",")) {
            let stars = declarator.iter().take_while(|t| t.is("*")).count();
            let Some((field, rest)) = declarator[stars..].split_first() else {
                return ty.error("a field has no name");
            };
            let (size, own, rust) = if stars > 0 { (8, 8, Some("u64")) } else { layout(text, ty)? };
            let count = match rest {
                [] => None,
                [open, length @ .., close] if open.is("[") && close.is("]") => {
                    let length: Vec<Token> = length.iter().map(|t| (*t).clone()).collect();
                    Some(expression(text, field, &length, 0)?)
                }
                _ => return field.error(format!("the type of {} is not understood", field.text)),
            };
            align = align.max(own);
            if bytes != bytes.next_multiple_of(own) {
                return field
                    .error(format!("there is a gap before {}: Rust writes fields one after the other", field.text));
            }
            bytes += size * count.unwrap_or(1);
            fields.push(Field { name: field.text.to_string(), rust, count });
        }
    }
    if bytes != bytes.next_multiple_of(align) {
        return name.error(format!("{} ends with a gap: Rust writes fields one after the other", name.text));
    }
    Ok(Some(Structure { bytes, align, fields }))
}
