//! Compiles the schema of Cap'n Proto's peer, which needs its compiler (`capnp`).

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    #[cfg(feature = "capnp")]
    capnpc::CompilerCommand::new()
        .src_prefix("schema")
        .file("schema/make.capnp")
        .default_parent_module(vec!["peers".to_owned(), "capnp".to_owned()])
        .run()
        .expect("the schema is one of ours, so `capnp` is missing");
}
