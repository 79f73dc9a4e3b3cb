//! Declarations that have no form say what is wrong with them.

#[expect(dead_code, reason = "expanding uses the rest")]
#[path = "../src/parse.rs"]
mod parse;

use parse::parse;

fn refused(declaration: &str) -> String {
    let input = syn::parse_str(declaration).unwrap();
    parse(&input).err().map_or_else(String::new, |error| error.to_string())
}

#[test]
fn declarations_without_a_form_are_refused() {
    let many = |n: usize| (0..n).map(|i| format!("m{i}: u8,")).collect::<Vec<_>>().concat();
    for (declaration, wanted) in [
        ("struct A(u8);", "members have names; a tuple of .NET is one of Rust"),
        ("struct A<'a, 'b> { a: &'a [u8], b: &'b [u8] }", "one lifetime at most: that of the message"),
        ("struct A<const N: usize> { a: u8 }", "no constant parameters: a type has one layout"),
        ("union A { a: u8 }", "a union of MemoryPack is an enum in Rust"),
        ("#[memory_pack(packed)] struct A { a: u8 }", "one word of: message, tolerant, circular, unmanaged"),
        ("#[memory_pack(tolerant, circular)] struct A {}", "one word of: message, tolerant, circular, unmanaged"),
        ("#[memory_pack(message)] struct A {}", "it has no members"),
        ("#[memory_pack(unmanaged)] struct A<T> { a: T }", "no parameters: this type has one size"),
        ("struct A { #[memory_pack(order = 0)] a: u8 }", "only members of tolerant and circular objects have an order"),
        (
            "#[memory_pack(tolerant)] struct A { #[memory_pack(order = 1)] a: u8, #[memory_pack(order = 1)] b: u8 }",
            "members stand in their order, each with one of its own",
        ),
        (
            "#[memory_pack(tolerant)] struct A { #[memory_pack(order = 249)] a: u8 }",
            "an object has 249 members at most",
        ),
        (&format!("struct A {{ {} }}", many(250)), "an object has 249 members at most"),
        ("enum A { B, C }", "an enum needs its integer, as in #[repr(i32)]: int in .NET"),
        ("#[repr(i32)] #[memory_pack(tolerant)] enum A { B }", "an enum has no such attribute"),
        ("enum A { B(u8) }", "a variant of a union needs its tag, as in #[memory_pack(tag = 0)]"),
        ("enum A { #[memory_pack(tag = 0)] B(u8, u8) }", "a variant of a union has one type, as in A(Of)"),
        ("enum A { #[memory_pack(tag = 0)] B { b: u8 } }", "a variant of a union has one type, as in A(Of)"),
        ("enum A { #[memory_pack(tag = 0)] B(u8), #[memory_pack(tag = 0)] C(u8) }", "tag 0 is taken"),
        ("enum A { #[memory_pack(number = 0)] B(u8) }", "tag = N, once, is all that can stand here"),
        (&format!("struct A {{ {} }}", many(249)), ""),
        ("#[repr(C, u8)] enum A { B }", ""),
    ] {
        assert_eq!(refused(declaration), wanted, "{declaration}");
    }
}
