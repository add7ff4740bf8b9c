//! Huge pages: what has them, what has none, and that nobody sees a difference but the clock.

use std::fs;

use shorthaul::{
    Client, ClientOptions, DirectClient, HugePages, Lane, Reply, SealedObject, ServerOptions,
    huge_pages_refused,
};
use shorthaul_platform::memory::huge_page_bytes;

use super::hostile::isolated;
use super::service::{Running, check, pattern, request, serve, start};

/// Two whole huge pages, and a rest.
fn bytes() -> usize {
    2 * huge_page_bytes() + 12_345
}

fn is_too_large() -> bool {
    let is_so = huge_page_bytes() > 32 << 20;
    if is_so {
        eprintln!("passed over: huge pages have {} bytes", huge_page_bytes());
    }
    is_so
}

/// Bytes in huge pages of all mappings of files that are called so.
fn huge_bytes(name: &str) -> usize {
    let smaps = fs::read_to_string("/proc/self/smaps").unwrap();
    let (mut is_counted, mut kibibytes) = (false, 0);
    for line in smaps.lines() {
        if let Some(value) = line.strip_prefix("ShmemPmdMapped:") {
            let value: usize = value.trim().trim_end_matches(" kB").parse().unwrap();
            kibibytes += if is_counted { value } else { 0 };
        } else if line.contains('/') {
            is_counted = line.contains(name);
        } else if line.split(' ').next().is_some_and(|word| word.contains('-')) {
            is_counted = false;
        }
    }
    kibibytes * 1024
}

fn server(pages: HugePages) -> Running {
    start(ServerOptions { huge_pages: pages, ..ServerOptions::default() }, serve)
}

/// What is held is looked at one after the other: nothing else of that name is mapped then.
fn look(pages: HugePages, expected: usize) {
    let running = server(pages);
    let options = ClientOptions { huge_pages: pages, ..ClientOptions::default() };
    let mut direct = DirectClient::connect_with(&running.path, &options).unwrap();
    let threaded = Client::connect_with(&running.path, &options).unwrap();
    let of = |what: &str, found: usize| {
        assert_eq!(found, expected * huge_page_bytes(), "{what} with {pages:?}");
    };

    let buffer = direct.buffer(bytes()).unwrap();
    of("a direct client's buffer", huge_bytes("memfd:shorthaul-buffer"));
    drop(buffer);
    let buffer = threaded.buffer(bytes()).unwrap();
    of("a client's buffer", huge_bytes("memfd:shorthaul-buffer"));
    drop(buffer);

    let object = SealedObject::copy_with(&pattern(bytes(), 3), pages).unwrap();
    assert!(object[..] == pattern(bytes(), 3));
    of("an object", huge_bytes("memfd:shorthaul-sealed"));
    drop(object);

    let ask = request(bytes(), 7);
    let reply = direct.call("make").request(&ask).sealed(bytes()).send().unwrap();
    check(&reply, bytes(), 7);
    of("a sealed answer", huge_bytes("memfd:shorthaul-sealed"));
    drop(reply);
    let reply = direct.call("make").request(&ask).into_fresh(bytes()).send().unwrap();
    check(&reply, bytes(), 7);
    let found = huge_bytes("memfd:shorthaul-buffer");
    // The server is this process: it may not have unmapped it yet.
    assert!(found == expected * huge_page_bytes() || found == 2 * expected * huge_page_bytes());
}

#[test]
fn large_memory_has_huge_pages_and_none_where_they_are_not_wanted() {
    if is_too_large() {
        return;
    }
    let name = "pages::large_memory_has_huge_pages_and_none_where_they_are_not_wanted";
    isolated(name, || {
        look(HugePages::Never, 0);
        drop(SealedObject::copy_of(&pattern(bytes(), 1)).unwrap());
        match huge_pages_refused() {
            Some(why) => eprintln!("passed over: {why}"),
            None => look(HugePages::Auto, 2),
        }
    });
}

/// A caller that offers much more room than answers take pays for huge pages once.
#[test]
fn memory_for_one_call_gets_as_many_huge_pages_as_answers_have_filled() {
    if is_too_large() {
        return;
    }
    let name = "pages::memory_for_one_call_gets_as_many_huge_pages_as_answers_have_filled";
    isolated(name, || {
        let running = server(HugePages::Auto);
        let mut client = DirectClient::connect(&running.path).unwrap();
        let mut huge_after = |bytes: usize| {
            let ask = request(bytes, 5);
            let call = client.call("make").request(&ask);
            let reply: Reply = call.into_fresh(4 * huge_page_bytes()).send().unwrap();
            check(&reply, bytes, 5);
            assert_eq!(reply.lane(), Lane::FillMap);
            // Looked at where the server has no mapping any more: its pages are mapped here alone.
            reply.sum(1);
            drop(reply);
            client.call("make").request(&request(0, 0)).send().unwrap();
        };
        // Of several, for the kernel has moments in which it gives none.
        let mut faults_after = |bytes: usize| {
            huge_after(bytes);
            let counts = (0..5).map(|_| {
                let before = page_faults();
                huge_after(bytes);
                page_faults() - before
            });
            counts.min().unwrap()
        };
        let small = faults_after(10);
        // A fault for each small page would be a thousand.
        let large = faults_after(2 * huge_page_bytes());
        assert!(small < 400, "{small} faults for a small answer");
        match huge_pages_refused() {
            Some(why) => eprintln!("passed over: {why}"),
            None => assert!(large < 400, "{large} faults for a large answer"),
        }
    });
}

fn page_faults() -> u64 {
    shorthaul_platform::usage::process_usage().unwrap().page_faults
}
