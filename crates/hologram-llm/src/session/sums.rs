//! Sums of squared activations, of which importance matrices are made.

use super::{Input, Logits, Output, Session, StepPlan};
use crate::error::Result;
use crate::models::decoder::SumName;

/// Takes a weight's name, the sums of its squared columns, and the tokens that these are of.
pub(crate) type EachSum<'a> = dyn FnMut(&str, &[f32], &[f32]) + 'a;

impl Session {
    /// Computes tokens, at most `batch`, as an empty sequence, and calls `each` with every weight's name, the sums of
    /// its squared columns and the number of tokens that these are of; for experts with those of all, one after
    /// another.
    ///
    /// # Errors
    /// As [`Session::feed`].
    pub(crate) fn sums(&mut self, tokens: &[u32], each: &mut EachSum<'_>) -> Result<()> {
        self.truncate(0, 0);
        self.set_inputs(&[Input { sequence: 0, tokens, logits: Logits::None }]);
        self.run(Output::Sums)?;
        let Some(StepPlan { plan, .. }) = self.last.and_then(|bucket| self.plans.get(&bucket)) else { return Ok(()) };
        for SumName { name, of_experts } in &self.sum_names {
            let squares = plan.read::<f32>(&format!("sum {name}"))?;
            let counts = match of_experts {
                true => plan.read::<f32>(&format!("count {name}"))?,
                false => vec![tokens.len() as f32],
            };
            each(name, &squares, &counts);
        }
        Ok(())
    }
}
