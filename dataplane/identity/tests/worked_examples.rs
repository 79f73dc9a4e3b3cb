//! The worked examples of docs/fabricbios-profile.md, which were computed independently of this code.

use berth_identity::{
    Identity,
    link::Client,
    token::{Terms, delegate, issue},
};
use berth_wire::fabric::{Caveat, Filter, FilterField, FilterOp, List, Op, Perms, Solicit, Wire as _};

/// The code blocks under the heading, as bytes.
fn examples() -> Vec<Vec<u8>> {
    let page = include_str!("../../../docs/fabricbios-profile.md");
    let (_, section) = page.split_once("## Worked examples").expect("the section is there");
    let block = |block: &str| {
        let digits: Vec<u8> = block.bytes().filter(u8::is_ascii_hexdigit).collect();
        let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
        digits.chunks(2).map(byte).collect()
    };
    section.split("```text").skip(1).map(|rest| block(rest.split("```").next().unwrap())).collect()
}

#[test]
fn the_examples_are_what_the_code_makes() {
    let examples = examples();
    let seed: [u8; 32] = std::array::from_fn(|i| i as u8);
    let key = Identity::from_seed(&seed);
    assert_eq!(examples[0], key.public_key().as_bytes());
    assert_eq!(examples[1], key.id().0.to_be_bytes());

    let node = "127.0.0.1:5700".parse().unwrap();
    let mut client = Client::new(Identity::from_seed(&seed), 0x0006_0000_0000_0001, 1);
    let ping = client.request(node, None, Op::Ping.code(), 0, &[], &[]).unwrap();
    assert_eq!(client.frames(ping).collect::<Vec<_>>(), [examples[2].clone()]);

    let memory = [Filter::new(FilterField::ResourceType, FilterOp::Eq, &[0, 2])];
    let solicit = Solicit { filters: List::of(&memory).unwrap(), padding: 0 };
    let solicit = client.solicit(node, None, solicit.to_vec(), true).unwrap();
    assert_eq!(client.frames(solicit).collect::<Vec<_>>(), [examples[3].clone()]);

    let terms = Terms {
        token_id: 1,
        audience: key.id(),
        resource_id: 0,
        perms: Perms::READ | Perms::ALLOC | Perms::DELEGATE,
        issued_at: 1_700_000_000,
        expires_at: 1_700_000_300,
        epoch: 0,
        caveats: &[Caveat::Depth(2)],
    };
    let token = issue(&key, &terms).unwrap();
    let passed_on = delegate(&token, &key, key.id(), &[Caveat::Range { offset: 0, len: 4096 }]).unwrap();
    assert_eq!(examples[4], passed_on);
    assert_eq!(examples.len(), 6); // the last is FBMU's, tested with its dataplane
}
