//! All tests of the public kernels in one binary: what is generic is compiled once, not once per file.

mod activation;
mod elementwise;
mod full_attention;
mod grouped;
mod linear;
mod low_rank;
mod oracle;
mod paged_attention;
mod recurrent;
mod sampling;
mod scale;
