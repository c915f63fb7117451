//! The name by which programs that are linked with the library ask for it.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libiof-pmix.so.0");
    println!("cargo:rerun-if-changed=build.rs");
}
