//! Reads the binary form.

use super::{HEADER, MAGIC, MAX_BINARY, VERSION, crc32, flag, tag};
use crate::program::*;
use crate::{IsaError, Opcode, Type};

/// Reads a program in binary form. Like [`parse()`](crate::parse()) it checks only the form;
/// [`verify()`](crate::verify()) checks the other rules.
///
/// # Errors
/// [`IsaError::Binary`] with the position and the expected content: a file of another kind, version or length, a wrong
/// checksum, a number beyond the list, the format or the limits of programs, an instruction or type unknown to this
/// version.
pub fn decode(file: &[u8]) -> Result<Program> {
    let Some(header) = file.first_chunk::<HEADER>().filter(|h| h.starts_with(&MAGIC)) else {
        let message = if MAGIC.starts_with(file) || file.starts_with(&MAGIC) {
            format!("the file ends after {} bytes, within the header of {HEADER}", file.len())
        } else {
            "not a binary Atlas program: the first bytes are wrong".into()
        };
        return Err(IsaError::Binary { at: 0, message });
    };
    let word = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    let version = word(8);
    if version != VERSION {
        let message = format!("unsupported version {version} of the binary form (supported: {VERSION})");
        return Err(IsaError::Binary { at: 8, message });
    }
    let length = u64::from(word(16)) | u64::from(word(20)) << 32;
    let content = &file[HEADER..];
    if content.len() as u64 != length || file.len() > MAX_BINARY {
        let message = match content.len() {
            found if found as u64 == length => format!("the program is longer than {MAX_BINARY} bytes"),
            found => format!("the header is followed by {found} bytes, but promises {length}"),
        };
        return Err(IsaError::Binary { at: 16, message });
    }
    let checksum = crc32(content);
    if checksum != word(12) {
        let message = format!("the program is damaged: its checksum is {checksum:08x}, not {:08x}", word(12));
        return Err(IsaError::Binary { at: 12, message });
    }
    let mut reader = Reader { file, at: HEADER, types: Vec::new(), ops: Vec::new(), statements: 0 };
    let program = reader.program()?;
    if reader.at != file.len() {
        return reader.error(reader.at, format!("{} bytes follow the program's end", file.len() - reader.at));
    }
    Ok(program)
}

struct Reader<'a> {
    file: &'a [u8],
    /// The position of the next byte.
    at: usize,
    /// The lists that indices of types and operations refer to.
    types: Vec<Type>,
    ops: Vec<Opcode>,
    /// Statements read so far.
    statements: usize,
}

type Result<T> = std::result::Result<T, IsaError>;

impl Reader<'_> {
    fn program(&mut self) -> Result<Program> {
        self.types = self.list(Type::ALL.len(), "types", |r| {
            let at = r.at;
            let name = r.name()?;
            Type::from_name(&name).map_or_else(|| r.error(at, format!("unknown type {name:?}")), Ok)
        })?;
        self.ops = self.list(Opcode::ALL.len(), "instructions", |r| {
            let at = r.at;
            let name = r.name()?;
            let op = Opcode::from_mnemonic(&name);
            op.map_or_else(|| r.error(at, format!("unknown instruction {name:?}")), Ok)
        })?;
        let name = self.name()?;
        let mut workgroup = [0; 3];
        for size in &mut workgroup {
            *size = self.number()?;
        }
        let params = self.list(MAX_PARAMS, "parameters", |r| {
            let name = r.name()?;
            let at = r.at;
            let kind = r.byte()?;
            let element = r.ty()?;
            let kind = match kind {
                0 => ParamKind::Scalar(element),
                1 => ParamKind::Buffer { element, access: Access::Read },
                2 => ParamKind::Buffer { element, access: Access::Write },
                3 => ParamKind::Buffer { element, access: Access::ReadWrite },
                _ => return r.error(at, format!("{kind} is not a kind of parameter")),
            };
            Ok(Param { name, kind })
        })?;
        let shared = self.list(MAX_PARAMS, "shared arrays", |r| {
            Ok(SharedArray { name: r.name()?, element: r.ty()?, len: r.number()? })
        })?;
        let registers = self.list(MAX_REGISTERS, "registers", |r| Ok(Register { name: r.name()?, ty: r.ty()? }))?;
        let body = self.block(1)?;
        Ok(Program { name, params, workgroup, shared, registers, body })
    }

    fn block(&mut self, depth: usize) -> Result<Vec<Stmt>> {
        if depth > MAX_NESTING {
            return self.error(self.at, format!("blocks are nested more than {MAX_NESTING} deep"));
        }
        self.list(MAX_STATEMENTS, "statements", |r| {
            r.statements += 1;
            if r.statements > MAX_STATEMENTS {
                return r.error(r.at, format!("more than {MAX_STATEMENTS} statements"));
            }
            Ok(Stmt { line: 0, kind: r.stmt(depth)? })
        })
    }

    fn stmt(&mut self, depth: usize) -> Result<StmtKind> {
        let at = self.at;
        let kind = self.byte()?;
        Ok(match kind {
            tag::INST => StmtKind::Inst(self.inst()?),
            tag::IF => {
                StmtKind::If { cond: self.operand()?, then: self.block(depth + 1)?, otherwise: self.block(depth + 1)? }
            }
            tag::FOR => StmtKind::For {
                var: Reg(self.number()?),
                start: self.operand()?,
                end: self.operand()?,
                step: self.operand()?,
                body: self.block(depth + 1)?,
            },
            tag::LOOP => StmtKind::Loop { max: self.number()?, body: self.block(depth + 1)? },
            tag::BREAK => StmtKind::Break { depth: self.number()?, cond: None },
            tag::BREAK_IF => StmtKind::Break { depth: self.number()?, cond: Some(self.operand()?) },
            tag::CONTINUE => StmtKind::Continue { depth: self.number()?, cond: None },
            tag::CONTINUE_IF => StmtKind::Continue { depth: self.number()?, cond: Some(self.operand()?) },
            _ => return self.error(at, format!("{kind} is not a kind of statement")),
        })
    }

    fn inst(&mut self) -> Result<Inst> {
        let at = self.at;
        let flags = self.byte()?;
        let known = flag::FAST | flag::RESULT | flag::PARAM | flag::SHARED;
        if flags & !known != 0 || flags & (flag::PARAM | flag::SHARED) == flag::PARAM | flag::SHARED {
            return self.error(at, format!("{flags:#x} are not valid flags of an instruction"));
        }
        let at = self.at;
        let index: u32 = self.number()?;
        let Some(&op) = self.ops.get(index as usize) else {
            return self.error(at, format!("instruction {index} is outside the list of {}", self.ops.len()));
        };
        let ty = self.ty()?;
        let dst = if flags & flag::RESULT != 0 { Some(Reg(self.number()?)) } else { None };
        let memory = match flags & (flag::PARAM | flag::SHARED) {
            0 => None,
            flag::PARAM => Some(Memory::Param(self.number()?)),
            _ => Some(Memory::Shared(self.number()?)),
        };
        let most = op.info().signature.operands().len();
        let args = self.list(most, "operands", Reader::operand)?;
        Ok(Inst { op, fast: flags & flag::FAST != 0, ty, dst, memory, args })
    }

    fn operand(&mut self) -> Result<Operand> {
        let at = self.at;
        Ok(match self.byte()? {
            0 => Operand::Reg(Reg(self.number()?)),
            1 => Operand::Scalar(self.number()?),
            2 => Operand::Const(self.ty()?, self.number()?),
            kind => return self.error(at, format!("{kind} is not a kind of operand")),
        })
    }

    fn ty(&mut self) -> Result<Type> {
        let at = self.at;
        let index: u32 = self.number()?;
        match self.types.get(index as usize) {
            Some(ty) => Ok(*ty),
            None => self.error(at, format!("type {index} is outside the list of {}", self.types.len())),
        }
    }

    /// Every item takes at least one byte, so the length is limited by the rest of the file.
    fn list<T>(&mut self, most: usize, what: &str, mut item: impl FnMut(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        let at = self.at;
        let count = self.number::<u64>()?;
        if count > most as u64 {
            return self.error(at, format!("{count} {what}, but at most {most} are allowed"));
        }
        let left = self.file.len() - self.at;
        if count > left as u64 {
            return self.error(at, format!("{count} {what}, but {left} bytes are left"));
        }
        (0..count).map(|_| item(self)).collect()
    }

    fn name(&mut self) -> Result<String> {
        let at = self.at;
        let length = self.number::<u64>()?;
        if length > MAX_NAME as u64 {
            return self.error(at, format!("a name of {length} bytes, but at most {MAX_NAME} are allowed"));
        }
        let bytes = self.file.get(self.at..self.at + length as usize);
        match bytes.map(std::str::from_utf8) {
            Some(Ok(name)) => {
                self.at += length as usize;
                Ok(name.into())
            }
            Some(Err(_)) => self.error(at, "a name is not UTF-8".into()),
            None => self.error(at, "the program ends within a name".into()),
        }
    }

    /// A number of the requested type.
    fn number<T: TryFrom<u64>>(&mut self) -> Result<T> {
        let at = self.at;
        let mut value = 0u64;
        for shift in (0..u64::BITS).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits {
                break;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return match T::try_from(value) {
                    Ok(value) => Ok(value),
                    Err(_) => self.error(at, format!("the number {value} is too large")),
                };
            }
        }
        self.error(at, "a number has more than 64 bits".into())
    }

    fn byte(&mut self) -> Result<u8> {
        match self.file.get(self.at) {
            Some(byte) => {
                self.at += 1;
                Ok(*byte)
            }
            None => self.error(self.at, "the program ends in the middle".into()),
        }
    }

    fn error<T>(&self, at: usize, message: String) -> Result<T> {
        Err(IsaError::Binary { at, message })
    }
}
