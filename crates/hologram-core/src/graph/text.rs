//! Graphs as text, one line per value.

use std::fmt;

use super::{Graph, Source};

/// Extents with their maxima, then every value with its operation, operands and type, then the outputs.
impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for extent in &self.extents {
            writeln!(f, "{} <= {}", extent.name, extent.max)?;
        }
        for (i, node) in self.nodes.iter().enumerate() {
            write!(f, "%{i} = ")?;
            let operands = |f: &mut fmt::Formatter<'_>, inputs: &[super::NodeId]| {
                inputs
                    .iter()
                    .enumerate()
                    .try_for_each(|(j, input)| write!(f, "{} %{}", if j > 0 { "," } else { "" }, input.0))
            };
            match &node.source {
                Source::Input { name } => write!(f, "input {name}")?,
                Source::Tensor(_) if node.state.is_some() => write!(f, "state")?,
                Source::Tensor(_) => write!(f, "tensor")?,
                Source::View(of, _) => write!(f, "view of %{}", of.0)?,
                Source::Op { op, inputs } => {
                    write!(f, "{op:?}")?;
                    operands(f, inputs)?;
                }
                Source::Part { part, inputs } => {
                    write!(f, "elsewhere on {}", part.executor.info().backend)?;
                    operands(f, inputs)?;
                }
            }
            write!(f, ": {}", self.describe(&node.ty))?;
            match &node.layout {
                Some(layout) => writeln!(f, " {layout:?}")?,
                None => writeln!(f)?,
            }
        }
        self.outputs.iter().try_for_each(|(name, value)| writeln!(f, "{name} = %{}", value.0))
    }
}
