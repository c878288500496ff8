//! All tests of the public grammars in one binary.

mod draws;
mod grammars;
mod world;
