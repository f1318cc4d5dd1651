//! Which statements hold operations across a subgroup, and which jumps leave them: what printers for devices need to know of control flow.

use crate::Opcode;
use crate::program::{Stmt, StmtKind};
use crate::table::Signature;

/// The blocks inside a statement.
pub(crate) fn inner(kind: &StmtKind) -> impl Iterator<Item = &[Stmt]> {
    let (a, b): (&[Stmt], &[Stmt]) = match kind {
        StmtKind::If { then, otherwise, .. } => (then, otherwise),
        StmtKind::For { body, .. } | StmtKind::Loop { body, .. } => (body, &[]),
        _ => (&[], &[]),
    };
    [a, b].into_iter()
}

/// Whether a block holds a subgroup operation.
pub(crate) fn is_joint(block: &[Stmt]) -> bool {
    block.iter().any(is_joint_stmt)
}

/// Whether a statement holds a subgroup operation.
pub(crate) fn is_joint_stmt(stmt: &Stmt) -> bool {
    match &stmt.kind {
        StmtKind::Inst(inst) => is_subgroup(inst.op),
        kind => inner(kind).any(is_joint),
    }
}

/// Whether an operation's result depends on other lanes, of which only the active ones take part.
pub(crate) fn is_subgroup(op: Opcode) -> bool {
    matches!(op.info().signature, Signature::Reduce | Signature::Shuffle) || op == Opcode::Broadcast
}

/// Whether a `break` or `continue` in a statement leaves `loops` loops around it, or more.
pub(crate) fn leaves(kind: &StmtKind, loops: u32) -> bool {
    match kind {
        StmtKind::Inst(_) => false,
        StmtKind::Break { depth, .. } | StmtKind::Continue { depth, .. } => *depth >= loops,
        StmtKind::For { .. } | StmtKind::Loop { .. } => {
            inner(kind).any(|b| b.iter().any(|s| leaves(&s.kind, loops + 1)))
        }
        StmtKind::If { .. } => inner(kind).any(|b| b.iter().any(|s| leaves(&s.kind, loops))),
    }
}
