//! Compiles the .proto files without protoc.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files = protox::compile(
        ["instance_group.proto", "plugin.proto", "health.proto", "extension.proto", "nesting.proto"],
        ["proto"],
    )?;
    tonic_prost_build::configure().compile_fds(files)?;
    println!("cargo:rerun-if-changed=proto");
    Ok(())
}
