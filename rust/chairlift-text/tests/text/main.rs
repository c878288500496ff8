//! All tests of the public names in one binary.

mod answer;
mod answer_values;
mod deltas;
mod properties;
mod text_state;
