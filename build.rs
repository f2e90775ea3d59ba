//! The library leaves a signal handler and suspended stacks behind, so it must never be unmapped.
fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let os = std::env::var("CARGO_CFG_TARGET_OS").unwrap_or_default();
    match os.as_str() {
        "linux" | "freebsd" => println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete"),
        "macos" => println!("cargo:rustc-cdylib-link-arg=-Wl,-undefined,dynamic_lookup"),
        _ => {}
    }
}
