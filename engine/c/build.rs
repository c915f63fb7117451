//! The name by which programs that are linked with the shared library ask for it.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libiof.so.0");
    println!("cargo:rerun-if-changed=build.rs");
}
