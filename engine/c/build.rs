//! The name by which programs that are linked with the shared library ask for it.

fn main() {
    // An argument for cdylibs would get into that of `iof-pmix` as well, which depends on this package.
    // For the tests, which are no shared objects, it means nothing.
    println!("cargo:rustc-link-arg=-Wl,-soname,libiof.so.0");
    println!("cargo:rerun-if-changed=build.rs");
}
