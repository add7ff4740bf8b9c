//! Makes as many empty calls as it is told, between two connections without a socket. It is run by
//! `.ci/instructions`, which counts their instructions.

fn main() {
    let calls = std::env::args().nth(1).and_then(|text| text.parse().ok());
    let Some(calls) = calls else {
        eprintln!("usage: empty-calls NUMBER");
        std::process::exit(2);
    };
    println!("{}", shorthaul::instructions::empty_calls(calls));
}
