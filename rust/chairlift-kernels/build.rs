//! Names the best instruction set of this machine to a debug build (`best_set`), which has no instances of kernels for
//! other sets but the portable one: each set costs a part of the crate's minutes, and tests run on the best one.
//! A release build has all sets.

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
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
    let has_avx2 = is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c");
    let has_avx512 = has_avx2
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl");
    let has_vnni = has_avx512 && is_x86_feature_detected!("avx512vnni");
    let has_bf16 = has_vnni && is_x86_feature_detected!("avx512bf16");
    let sets = [
        ("avx512bf16", has_bf16),
        ("avx512vnni", has_vnni),
        ("avx512", has_avx512),
        ("avx2", has_avx2),
    ];
    sets.into_iter().find_map(|(set, has)| has.then_some(set))
}

#[cfg(not(target_arch = "x86_64"))]
fn best_set() -> Option<&'static str> {
    None
}
