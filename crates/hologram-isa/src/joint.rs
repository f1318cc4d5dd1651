//! Control-flow queries for printers: which statements contain subgroup operations, and which jumps leave them.

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

/// Whether a block contains a subgroup operation.
pub(crate) fn is_joint(block: &[Stmt]) -> bool {
    block.iter().any(is_joint_stmt)
}

/// Whether a statement contains a subgroup operation.
pub(crate) fn is_joint_stmt(stmt: &Stmt) -> bool {
    match &stmt.kind {
        StmtKind::Inst(inst) => is_subgroup(inst.op),
        kind => inner(kind).any(is_joint),
    }
}

/// Whether an operation's result depends on the other active lanes.
pub(crate) fn is_subgroup(op: Opcode) -> bool {
    matches!(op.info().signature, Signature::Reduce | Signature::Shuffle) || op == Opcode::Broadcast
}

/// Whether a `break` or `continue` in a statement leaves at least `loops` loops around it.
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
