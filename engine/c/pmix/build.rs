//! Sets the soname, by which the dynamic loader finds the library.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libiof-pmix.so.0");
    println!("cargo:rerun-if-changed=build.rs");
}
