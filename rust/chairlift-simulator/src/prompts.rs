//! Prompts that are sent back, with a log probability of each token but the first.

use chairlift_core::PromptOptions;

use crate::client::Client;

impl Client {
    /// Takes a piece of its prompt, with what the step says of the tokens that have a log probability.
    pub(crate) fn take_prompt(
        &mut self,
        offset: usize,
        tokens: &[i32],
        scored: &[(usize, usize, i32)],
        client: usize,
    ) -> Result<(), String> {
        let label = self.label;
        let PromptOptions { echo, scores } = self.prompt_output;
        let end = offset + tokens.len();
        let is_next = (echo || scores) && self.is_live() && offset == self.num_prompt_sent;
        if !is_next || self.answer.tokens.get(offset..end) != Some(tokens) {
            return Err(format!(
                "#{label} gets another piece of its prompt at {offset}"
            ));
        }
        self.num_prompt_sent = end;
        let expected = (offset.max(1)..end).map(|at| (client, at, tokens[at - offset]));
        let expected: Vec<_> = expected.filter(|_| scores).collect();
        if scored != expected {
            return Err(format!(
                "#{label} gets {scored:?} for its prompt, expected {expected:?}"
            ));
        }
        Ok(())
    }
}
