//! Reads the text form.

use std::collections::HashMap;

use super::constant;
use super::lex::{Kind, Lexer, Token};
use super::{CONSTANT_WORDS, FAST, MAX_TEXT};
use crate::program::*;
use crate::verify::check_header;
use crate::{IsaError, Opcode, Type};

/// Reads one program in the form described in the [module](crate::text). [`verify()`](crate::verify()) checks the rules
/// beyond the form: operand types, definite assignment, barriers.
///
/// # Errors
/// [`IsaError::Parse`] with the line of the first wrong token and what was expected.
pub fn parse(text: &str) -> Result<Program, IsaError> {
    if text.len() > MAX_TEXT {
        return Err(IsaError::Parse { line: 1, message: format!("the text is longer than {MAX_TEXT} bytes") });
    }
    // Some editors begin a file with a byte order mark.
    let mut lexer = Lexer::new(text.strip_prefix('\u{feff}').unwrap_or(text));
    let token = lexer.next()?;
    let program = Program {
        name: String::new(),
        params: Vec::new(),
        workgroup: [1; 3],
        shared: Vec::new(),
        registers: Vec::new(),
        body: Vec::new(),
    };
    let mut parser = Parser {
        lexer,
        token,
        program,
        names: HashMap::new(),
        registers: HashMap::new(),
        all_declared: false,
        statements: 0,
        loops: Vec::new(),
    };
    parser.skip_newlines()?;
    parser.header()?;
    parser.program.body = parser.block(1)?;
    parser.skip_newlines()?;
    if parser.token.kind != Kind::End {
        return parser.expected("the end of the file after the kernel (a file holds one)");
    }
    Ok(parser.program)
}

/// The parameter or shared array with a name.
#[derive(Clone, Copy)]
enum Name {
    Scalar(u32),
    Memory(Memory, Type),
}

struct Parser<'a> {
    lexer: Lexer<'a>,
    /// The next token.
    token: Token<'a>,
    program: Program,
    names: HashMap<&'a str, Name>,
    registers: HashMap<&'a str, Reg>,
    /// Whether a `registers` clause has declared every register.
    all_declared: bool,
    statements: usize,
    /// Labels of the open loops, innermost last.
    loops: Vec<Option<&'a str>>,
}

impl<'a> Parser<'a> {
    fn header(&mut self) -> Result<(), IsaError> {
        // The line of the kernel, then of each parameter, then of each shared array.
        let mut lines = vec![self.token.line];
        self.keyword("kernel")?;
        self.program.name = self.take(Kind::Word, "the kernel's name")?.text.into();
        self.list(|p| {
            let name = p.take(Kind::Word, "a parameter's name")?;
            p.punct(":")?;
            let kind = p.param_kind()?;
            lines.push(name.line);
            p.limit(p.program.params.len(), MAX_PARAMS, "parameters")?;
            let index = p.program.params.len() as u32;
            let meaning = match kind {
                ParamKind::Buffer { element, .. } => Name::Memory(Memory::Param(index), element),
                ParamKind::Scalar(_) => Name::Scalar(index),
            };
            p.names.insert(name.text, meaning);
            p.program.params.push(Param { name: name.text.into(), kind });
            Ok(())
        })?;
        self.skip_newlines()?;
        self.keyword("workgroup")?;
        let mut sizes = Vec::new();
        self.list(|p| {
            p.limit(sizes.len(), 3, "workgroup sizes")?;
            sizes.push(p.number()?);
            Ok(())
        })?;
        if sizes.is_empty() {
            return self.expected("a workgroup size before this");
        }
        for (size, given) in self.program.workgroup.iter_mut().zip(sizes) {
            *size = given;
        }
        self.skip_newlines()?;
        if self.eat_word("shared")? {
            self.list(|p| {
                let name = p.take(Kind::Word, "a shared array's name")?;
                p.punct(":")?;
                let element = p.type_name()?;
                p.punct("[")?;
                let len = p.number()?;
                p.punct("]")?;
                lines.push(name.line);
                p.limit(p.program.shared.len(), MAX_PARAMS, "shared arrays")?;
                let memory = Memory::Shared(p.program.shared.len() as u32);
                p.names.insert(name.text, Name::Memory(memory, element));
                p.program.shared.push(SharedArray { name: name.text.into(), element, len });
                Ok(())
            })?;
        }
        self.skip_newlines()?;
        if self.eat_word("registers")? {
            self.list(|p| {
                let name = p.take(Kind::Register, "a register")?;
                p.punct(":")?;
                let ty = p.type_name()?;
                if p.registers.contains_key(name.text) {
                    return error(name.line, format!("{name} is declared twice"));
                }
                p.define(name, ty)?;
                Ok(())
            })?;
            self.all_declared = true;
        }
        self.skip_newlines()?;
        self.punct("{")?;
        check_header(&self.program)
            .or_else(|(item, message)| error(lines.get(item).copied().unwrap_or(lines[0]), message))
    }

    /// `( item, item, … )`, possibly over several lines.
    fn list(&mut self, mut item: impl FnMut(&mut Self) -> Result<(), IsaError>) -> Result<(), IsaError> {
        self.punct("(")?;
        self.skip_newlines()?;
        while !self.eat_punct(")")? {
            item(self)?;
            self.skip_newlines()?;
            if !self.eat_punct(",")? && !self.at_punct(")") {
                return self.expected("`,` or `)`");
            }
            self.skip_newlines()?;
        }
        Ok(())
    }

    fn param_kind(&mut self) -> Result<ParamKind, IsaError> {
        if !self.eat_word("buffer")? {
            return Ok(ParamKind::Scalar(self.type_name()?));
        }
        self.punct("<")?;
        let element = self.type_name()?;
        let mut access = Access::Read;
        if self.eat_punct(",")? {
            access = match self.token.text {
                "read" => Access::Read,
                "write" => Access::Write,
                "readwrite" => Access::ReadWrite,
                _ => return self.expected("read, write or readwrite"),
            };
            self.advance()?;
        }
        self.punct(">")?;
        Ok(ParamKind::Buffer { element, access })
    }

    fn type_name(&mut self) -> Result<Type, IsaError> {
        match Type::from_name(self.token.text) {
            Some(ty) if self.token.kind == Kind::Word => {
                self.advance()?;
                Ok(ty)
            }
            _ => self.expected(&format!("a type ({})", Type::ALL.map(Type::name).join(", "))),
        }
    }

    /// The statements up to and including the `}` that ends the block.
    fn block(&mut self, depth: usize) -> Result<Vec<Stmt>, IsaError> {
        if depth > MAX_NESTING {
            return error(self.token.line, format!("blocks are nested more than {MAX_NESTING} deep"));
        }
        let mut block = Vec::new();
        loop {
            self.skip_newlines()?;
            if self.eat_punct("}")? {
                return Ok(block);
            }
            if self.token.kind == Kind::End {
                return self.expected("`}`");
            }
            self.limit(self.statements, MAX_STATEMENTS, "statements")?;
            self.statements += 1;
            let line = self.token.line;
            let kind = self.statement(depth)?;
            block.push(Stmt { line, kind });
            if !(matches!(self.token.kind, Kind::Newline | Kind::End) || self.at_punct("}")) {
                return self.expected("the end of the line");
            }
        }
    }

    fn statement(&mut self, depth: usize) -> Result<StmtKind, IsaError> {
        let first = self.token;
        if first.kind == Kind::Register {
            self.advance()?;
            self.punct("=")?;
            return self.instruction(Some(first));
        }
        if first.kind != Kind::Word {
            return self.expected("a statement");
        }
        match first.text {
            "if" => {
                self.advance()?;
                let cond = self.operand(Some(Type::Bool))?;
                self.punct("{")?;
                let then = self.block(depth + 1)?;
                let mut otherwise = Vec::new();
                if self.eat_word("else")? {
                    self.punct("{")?;
                    otherwise = self.block(depth + 1)?;
                }
                Ok(StmtKind::If { cond, then, otherwise })
            }
            "for" => {
                self.advance()?;
                let label = self.new_label()?;
                let var = self.take(Kind::Register, "the counter, such as `%i`")?;
                self.punct(":")?;
                let ty = self.type_name()?;
                self.punct("=")?;
                let start = self.operand(Some(ty))?;
                self.keyword("to")?;
                let end = self.operand(Some(ty))?;
                self.keyword("step")?;
                let step = self.operand(Some(ty))?;
                let var = self.define(var, ty)?;
                let body = self.loop_body(label, depth)?;
                Ok(StmtKind::For { var, start, end, step, body })
            }
            "loop" => {
                self.advance()?;
                let label = self.new_label()?;
                self.keyword("max")?;
                let max = self.number()?;
                let body = self.loop_body(label, depth)?;
                Ok(StmtKind::Loop { max, body })
            }
            "break" | "continue" => {
                self.advance()?;
                let depth = self.jump_depth(first)?;
                let cond = if self.eat_word("if")? { Some(self.operand(Some(Type::Bool))?) } else { None };
                Ok(match first.text {
                    "break" => StmtKind::Break { depth, cond },
                    _ => StmtKind::Continue { depth, cond },
                })
            }
            _ => self.instruction(None),
        }
    }

    fn loop_body(&mut self, label: Option<&'a str>, depth: usize) -> Result<Vec<Stmt>, IsaError> {
        self.punct("{")?;
        self.loops.push(label);
        let body = self.block(depth + 1)?;
        self.loops.pop();
        Ok(body)
    }

    fn new_label(&mut self) -> Result<Option<&'a str>, IsaError> {
        let token = self.token;
        if token.kind != Kind::Label {
            return Ok(None);
        }
        if self.loops.contains(&Some(token.text)) {
            return error(token.line, format!("{token} is already the label of a loop around this one"));
        }
        self.advance()?;
        Ok(Some(token.text))
    }

    /// The number of loops that the jump `word` leaves: 0, or up to the label that follows.
    fn jump_depth(&mut self, word: Token<'a>) -> Result<u32, IsaError> {
        if self.loops.is_empty() {
            return error(word.line, format!("{word} is outside of any loop"));
        }
        let label = self.token;
        if label.kind != Kind::Label {
            return Ok(0);
        }
        let Some(depth) = self.loops.iter().rev().position(|l| *l == Some(label.text)) else {
            return error(label.line, format!("no loop around this statement has the label {label}"));
        };
        self.advance()?;
        Ok(depth as u32)
    }

    fn instruction(&mut self, dst: Option<Token<'a>>) -> Result<StmtKind, IsaError> {
        let word = self.token;
        let (op, fast, ty) = self.mnemonic(dst.is_none())?;
        let signature = op.info().signature;
        match (dst, signature.result(ty)) {
            (None, Some(_)) => {
                return error(word.line, format!("{word} has a result: write `%name = {}`", word.text));
            }
            (Some(dst), None) => return error(word.line, format!("{word} has no result to assign to {dst}")),
            _ => {}
        }
        let mut memory = None;
        let mut args = Vec::new();
        for (i, rule) in signature.operands().iter().enumerate() {
            if i == 0 && signature.has_memory() {
                memory = Some(self.memory(ty)?);
                self.punct("[")?;
                args.push(self.operand(rule.resolve(ty))?);
                self.punct("]")?;
                continue;
            }
            if i > 0 {
                self.punct(",")?;
            }
            args.push(self.operand(rule.resolve(ty))?);
        }
        let dst = match (dst, signature.result(ty)) {
            (Some(dst), Some(result)) => Some(self.define(dst, result)?),
            _ => None,
        };
        Ok(StmtKind::Inst(Inst { op, fast, ty, dst, memory, args }))
    }

    /// An operation, whether it is in its fast form, and its type.
    fn mnemonic(&mut self, or_statement: bool) -> Result<(Opcode, bool, Type), IsaError> {
        let what = if or_statement { "a statement" } else { "an instruction" };
        let word = self.token;
        if word.kind != Kind::Word {
            return self.expected(what);
        }
        let whole = Opcode::from_mnemonic(word.text);
        let (op, fast, ty) = match (whole, word.text.rsplit_once('.')) {
            (Some(op), _) if !op.info().signature.carries_type() => (op, false, Type::U32),
            (Some(op), _) => {
                let types = op.info().types;
                let usual = [Type::F32, Type::U32].into_iter().find(|ty| types.contains(*ty));
                let example = usual.or(types.iter().next()).unwrap_or(Type::U32);
                return error(word.line, format!("{word} requires a type, such as `{}.{example}`", word.text));
            }
            (None, Some((name, suffix))) => {
                let (name, fast) = name.strip_suffix(FAST).map_or((name, false), |name| (name, true));
                let (Some(op), Some(ty)) = (Opcode::from_mnemonic(name), Type::from_name(suffix)) else {
                    return self.unknown_mnemonic(what);
                };
                if !op.info().signature.carries_type() {
                    return error(word.line, format!("{name} has no type: write `{name}`"));
                }
                if !op.info().types.contains(ty) {
                    let types: Vec<_> = op.info().types.iter().map(Type::name).collect();
                    return error(word.line, format!("{name} does not exist for {ty}, only for {}", types.join(", ")));
                }
                if fast && !op.has_fast(ty) {
                    return error(word.line, format!("{name}.{ty} has no fast form"));
                }
                (op, fast, ty)
            }
            (None, None) => return self.unknown_mnemonic(what),
        };
        self.advance()?;
        Ok((op, fast, ty))
    }

    fn unknown_mnemonic<T>(&self, what: &str) -> Result<T, IsaError> {
        let text = self.token.text;
        let (name, suffix) = text.rsplit_once('.').unwrap_or((text, ""));
        if Opcode::from_mnemonic(name).is_some() {
            return error(self.token.line, format!("expected a type after `{name}.`, found `{suffix}`"));
        }
        // A mnemonic may itself contain a dot, so both readings are tried.
        let nearest = Opcode::ALL.iter().map(|op| op.info().mnemonic).chain(["if", "for", "loop", "break", "continue"]);
        let near = nearest
            .map(|known| (distance(text, known).min(distance(name, known)), known))
            .min_by_key(|(distance, _)| *distance)
            .filter(|(distance, known)| *distance <= 2 && *distance * 5 <= name.len().max(known.len()) * 2);
        let hint = near.map(|(_, known)| format!("; the nearest is `{known}`")).unwrap_or_default();
        error(self.token.line, format!("expected {what}, found {}{hint}", self.token))
    }

    fn memory(&mut self, ty: Type) -> Result<Memory, IsaError> {
        let word = self.take(Kind::Word, "a buffer or shared array")?;
        match self.names.get(word.text) {
            Some(Name::Memory(memory, element)) if *element == ty => Ok(*memory),
            Some(Name::Memory(_, element)) => error(word.line, format!("{word} holds {element}, not {ty}")),
            Some(Name::Scalar(_)) => error(word.line, format!("{word} is a scalar, not a buffer or shared array")),
            None => error(word.line, format!("no buffer or shared array is named {word}")),
        }
    }

    /// A register, scalar or constant; `position` is the default type of a constant.
    fn operand(&mut self, position: Option<Type>) -> Result<Operand, IsaError> {
        let token = self.token;
        match token.kind {
            Kind::Register => {
                self.advance()?;
                match self.registers.get(token.text) {
                    Some(reg) => Ok(Operand::Reg(*reg)),
                    None if self.all_declared => error(token.line, format!("the registers clause lacks {token}")),
                    None => error(token.line, format!("{token} is read before any assignment to it")),
                }
            }
            Kind::Word if !CONSTANT_WORDS.contains(&token.text) => {
                self.advance()?;
                match self.names.get(token.text) {
                    Some(Name::Scalar(index)) => Ok(Operand::Scalar(*index)),
                    Some(Name::Memory(..)) => error(
                        token.line,
                        format!("{token} is a buffer or shared array: load an element of it into a register first"),
                    ),
                    None if Opcode::from_mnemonic(token.text).is_some() => {
                        error(token.line, format!("{token} is an instruction: assign its result to a register first"))
                    }
                    None => error(token.line, format!("no scalar parameter is named {token}")),
                }
            }
            Kind::Word | Kind::Number => {
                self.advance()?;
                let suffix = if self.eat_punct(":")? { Some(self.type_name()?) } else { None };
                let Some(ty) = suffix.or(position) else {
                    let message = format!("{token} requires a type here, such as `{}:f32`", token.text);
                    return error(token.line, message);
                };
                let word = constant::parse(ty, token.text).or_else(|message| error(token.line, message))?;
                Ok(Operand::Const(ty, word))
            }
            _ => self.expected("an operand (a register, a scalar parameter or a constant)"),
        }
    }

    /// A literal `u32`.
    fn number(&mut self) -> Result<u32, IsaError> {
        let token = self.take(Kind::Number, "a number")?;
        constant::parse(Type::U32, token.text).map(|word| word as u32).or_else(|message| error(token.line, message))
    }

    /// The register `name`, declared by its first assignment, here with a value of type `ty`.
    fn define(&mut self, name: Token<'a>, ty: Type) -> Result<Reg, IsaError> {
        if let Some(reg) = self.registers.get(name.text) {
            let declared = self.program.registers[reg.0 as usize].ty;
            if declared != ty {
                return error(name.line, format!("{name} is a {declared} and cannot be assigned a {ty}"));
            }
            return Ok(*reg);
        }
        if self.all_declared {
            return error(name.line, format!("the registers clause lacks {name}"));
        }
        self.limit(self.program.registers.len(), MAX_REGISTERS, "registers")?;
        if name.text.len() > MAX_NAME {
            return error(name.line, format!("a register's name is longer than {MAX_NAME} bytes"));
        }
        let reg = Reg(self.program.registers.len() as u32);
        self.program.registers.push(Register { name: name.text.into(), ty });
        self.registers.insert(name.text, reg);
        Ok(reg)
    }

    fn limit(&self, count: usize, most: usize, what: &str) -> Result<(), IsaError> {
        if count < most { Ok(()) } else { error(self.token.line, format!("more than {most} {what}")) }
    }

    fn advance(&mut self) -> Result<(), IsaError> {
        self.token = self.lexer.next()?;
        Ok(())
    }

    fn skip_newlines(&mut self) -> Result<(), IsaError> {
        while self.token.kind == Kind::Newline {
            self.advance()?;
        }
        Ok(())
    }

    fn take(&mut self, kind: Kind, what: &str) -> Result<Token<'a>, IsaError> {
        let token = self.token;
        if token.kind != kind {
            return self.expected(what);
        }
        self.advance()?;
        Ok(token)
    }

    fn keyword(&mut self, word: &str) -> Result<(), IsaError> {
        if self.eat_word(word)? { Ok(()) } else { self.expected(&format!("`{word}`")) }
    }

    fn eat_word(&mut self, word: &str) -> Result<bool, IsaError> {
        let here = self.token.kind == Kind::Word && self.token.text == word;
        if here {
            self.advance()?;
        }
        Ok(here)
    }

    fn punct(&mut self, punct: &str) -> Result<(), IsaError> {
        if self.eat_punct(punct)? { Ok(()) } else { self.expected(&format!("`{punct}`")) }
    }

    fn eat_punct(&mut self, punct: &str) -> Result<bool, IsaError> {
        let here = self.at_punct(punct);
        if here {
            self.advance()?;
        }
        Ok(here)
    }

    fn at_punct(&self, punct: &str) -> bool {
        self.token.kind == Kind::Punct && self.token.text == punct
    }

    fn expected<T>(&self, what: &str) -> Result<T, IsaError> {
        error(self.token.line, format!("expected {what}, found {}", self.token))
    }
}

fn error<T>(line: u32, mut message: String) -> Result<T, IsaError> {
    // A hostile token may be as long as the file.
    if let Some((cut, _)) = message.char_indices().nth(400) {
        message.truncate(cut);
        message.push('…');
    }
    Err(IsaError::Parse { line, message })
}

/// How many letters must be typed, left out, changed or swapped with their neighbour to make one word the other; large
/// for words too long for a typing error.
fn distance(a: &str, b: &str) -> usize {
    if a.len() > 32 {
        return usize::MAX;
    }
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let (mut before, mut above, mut row) = (vec![0; b.len() + 1], Vec::new(), (0..=b.len()).collect::<Vec<usize>>());
    for i in 0..a.len() {
        above.clone_from(&row);
        row[0] = i + 1;
        for j in 0..b.len() {
            row[j + 1] = (above[j] + usize::from(a[i] != b[j])).min(row[j] + 1).min(above[j + 1] + 1);
            if i > 0 && j > 0 && a[i] == b[j - 1] && a[i - 1] == b[j] {
                row[j + 1] = row[j + 1].min(before[j - 1] + 1);
            }
        }
        std::mem::swap(&mut before, &mut above);
    }
    row[b.len()]
}
