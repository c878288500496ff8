//! Names the best instruction set of this machine to a debug build (`best_set`), which has no instances of kernels for
//! other sets but the portable one: each set costs a part of the crate's minutes, and tests run on the best one.
//! A release build has all sets.

#[cfg(target_arch = "x86_64")]
#[path = "src/isa/features.rs"]
mod features;

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=src/isa/features.rs");
    println!(
        r#"cargo::rustc-check-cfg=cfg(best_set, values("avx512bf16", "avx512vnni", "avx512", "avx2"))"#
    );
    let is_debug = env::var("PROFILE").is_ok_and(|profile| profile == "debug");
    let is_native = env::var("HOST") == env::var("TARGET");
    if is_debug
        && is_native
        && let Some(set) = best_set()
    {
        println!(r#"cargo::rustc-cfg=best_set="{set}""#);
    }
}

#[cfg(target_arch = "x86_64")]
fn best_set() -> Option<&'static str> {
    let sets = [
        ("avx512bf16", features::has_avx512bf16()),
        ("avx512vnni", features::has_avx512vnni()),
        ("avx512", features::has_avx512()),
        ("avx2", features::has_avx2()),
    ];
    sets.into_iter().find_map(|(set, has)| has.then_some(set))
}

#[cfg(not(target_arch = "x86_64"))]
fn best_set() -> Option<&'static str> {
    None
}
