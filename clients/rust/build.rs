//! Generates the stubs from `proto/`, without a `protoc`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files = ["chairlift/v1/generation.proto", "chairlift/v1/server.proto"];
    println!("cargo:rerun-if-changed=../../proto");
    let descriptors = protox::compile(files, ["../../proto"])?;
    tonic_prost_build::configure()
        .build_server(false)
        .compile_fds(descriptors)?;
    Ok(())
}
