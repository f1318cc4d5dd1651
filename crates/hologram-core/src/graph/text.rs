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
            match &node.source {
                Source::Input { name } => write!(f, "input {name}")?,
                Source::Tensor(_) if node.state.is_some() => write!(f, "state")?,
                Source::Tensor(_) => write!(f, "tensor")?,
                Source::View(of, _) => write!(f, "view of %{}", of.0)?,
                Source::Op { op, inputs } => {
                    write!(f, "{op:?}")?;
                    for (j, input) in inputs.iter().enumerate() {
                        write!(f, "{} %{}", if j > 0 { "," } else { "" }, input.0)?;
                    }
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
