//! Has the linker export the symbols for debuggers (`src/run/mpir.rs`). Otherwise it would drop their
//! names, or strip(1) would.

fn main() {
    // Older linkers do not know --export-dynamic-symbol.
    let symbols = concat!(env!("CARGO_MANIFEST_DIR"), "/mpir.symbols");
    println!("cargo::rerun-if-changed={symbols}");
    println!("cargo::rustc-link-arg-bin=iof=-Wl,--dynamic-list={symbols}");
}
