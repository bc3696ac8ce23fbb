//! Rebuilds when a migration is added: `sqlx::migrate!` embeds the folder.

#[expect(clippy::print_stdout, reason = "this is how a build script speaks to cargo")]
fn main() {
    println!("cargo:rerun-if-changed=migrations");
}
