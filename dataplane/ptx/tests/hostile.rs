//! Long texts that are made to be slow: each is loaded or refused in bounded time and memory.

use std::{
    fmt::Write as _,
    fs,
    time::{Duration, Instant},
};

use berth_ptx::{Module, Program, check};

const HEAD: &str = ".version 7.8\n.target sm_80\n.address_size 64\n";
/// Bytes of each text.
const LONG: usize = 1 << 20;
/// Far more than any takes, so that it holds on a slow machine; what is quadratic takes minutes.
const TIME: Duration = Duration::from_secs(5);
/// Most memory that this process has at any time, in KiB.
const MEMORY: u64 = 512 << 10;

/// `piece` of 0, 1 and so on, one behind the other, until there are so many bytes.
fn filled(bytes: usize, piece: impl Fn(usize) -> String) -> String {
    let (mut text, mut at) = (String::new(), 0);
    while text.len() < bytes {
        text += &piece(at);
        at += 1;
    }
    text
}

/// A kernel with this body.
fn kernel(body: &str) -> String {
    format!("{HEAD}.entry k()\n{{\n.reg .b64 %rd<9>; .reg .b32 %r<9>; .reg .pred %p<9>;\n{body}\nret;\n}}\n")
}

fn half(piece: impl Fn(usize) -> String) -> String {
    filled(LONG / 2, piece)
}

fn texts() -> Vec<(&'static str, String)> {
    let long = |piece: &str| filled(LONG, |_| piece.into());
    let mut chain = format!("{HEAD}.func f0() {{ ret; }}\n");
    let mut at = 1;
    while chain.len() < LONG {
        let _ = writeln!(chain, ".func f{at}() {{ call f{}; ret; }}", at - 1);
        at += 1;
    }
    let _ = writeln!(chain, ".entry k() {{ call f{}; }}", at - 1);
    let many = half(|at| format!(".param .b8 a{at},")) + ".param .b8 z";
    let targets = filled(LONG / 4, |_| "L,".into()) + "L";
    let jumps = filled(3 * LONG / 4, |_| "brx.idx %r1,t;".into());
    vec![
        ("labels", kernel(&filled(LONG, |at| format!("L{at}:")))),
        ("one label", kernel(&long("L:"))),
        ("branches", kernel(&(half(|at| format!("L{at}:")) + &half(|at| format!("bra L{at};"))))),
        ("declared functions", format!("{HEAD}{}", filled(LONG, |at| format!(".func f{at}();\n")))),
        ("functions", format!("{HEAD}{}", filled(LONG, |at| format!(".func f{at}(){{}}")))),
        ("kernels", format!("{HEAD}{}", filled(LONG, |at| format!(".entry f{at}(){{}}")))),
        ("one function, declared otherwise", {
            format!("{HEAD}.visible .func f({many}) {{ ret; }}\n{}", half(|_| ".func f();".into()))
        }),
        ("one function, called otherwise", {
            format!("{HEAD}.func f({many}) {{ ret; }}\n.entry k() {{\n{}}}\n", half(|_| "call f;".into()))
        }),
        ("a prototype, called otherwise", {
            let prototype = many.replace(".param .b8 a", ".param .b8 b");
            kernel(&format!("p: .callprototype _ ({prototype});\n{}", half(|_| "call %rd1, p;".into())))
        }),
        ("registers", kernel(&filled(LONG, |at| format!(".reg .b32 a{at};")))),
        ("rows of registers", kernel(&filled(LONG, |at| format!(".reg .b32 a{at}<0>;")))),
        ("registers of many digits", kernel(&format!("mov.u32 %r{}, 1;", long("1")))),
        ("constants", kernel(&filled(LONG, |at| format!("mov.u32 %r1,{at};")))),
        ("initialisers", format!("{HEAD}.global .b8 x[] = {{{}0}};", long("1,"))),
        ("nested initialisers", format!("{HEAD}.global .b8 x[][1][1][1][1][1][1][1] = {{{}{{}}}};", long("{{}},"))),
        ("addresses", format!("{HEAD}.global .b64 y;\n.global .b64 x[] = {{{}y}};", long("y,"))),
        ("variables", format!("{HEAD}{}", filled(LONG, |at| format!(".shared .b8 x{at};")))),
        ("blocks", kernel(&long("{}"))),
        ("blocks in blocks", kernel(&long(&("{".repeat(64) + &"}".repeat(64))))),
        ("names from far outside", kernel(&("{".repeat(60) + &long("mov.u32 %r1,%r2;") + &"}".repeat(60)))),
        ("blocks that do not end", kernel(&long("{"))),
        ("calls one in the other", chain),
        ("jumps by long lists", kernel(&format!("t: .branchtargets {targets};\n{jumps}\nL:"))),
        (
            "lists of labels",
            kernel(&filled(LONG, |at| format!("L{at}: t{at}: .branchtargets L{at};brx.idx %r1,t{at};"))),
        ),
        ("one line", kernel(&long("add.u32 %r1,%r1,%r2;"))),
        ("one instruction's modifiers", kernel(&format!("add{} %r1, %r1, %r1;", long(".u32")))),
        ("one instruction's operands", kernel(&format!("call %r1, ({}1);", long("1,")))),
        ("one name", kernel(&format!("mov.u32 {}, 1;", long("a")))),
        ("mistakes", kernel(&long("bra M;"))),
        (
            "mistakes after branches",
            kernel(&("L:".to_owned() + &half(|_| "bra L;".into()) + &half(|_| "bra M;".into()))),
        ),
        ("comments", kernel(&long("/**/"))),
        ("comments of a line", kernel(&long("//\n"))),
        ("a comment that does not end", kernel(&format!("/*{}", long("*a")))),
        ("a section", format!("{HEAD}.section a {{{}}}", long("b,"))),
        ("lines", kernel(&long("\n"))),
        ("dimensions", format!("{HEAD}.global .b8 x{};", long("[1]"))),
        ("options of the target", format!(".version 7.8\n.target sm_80{}\n", long(",a"))),
    ]
}

#[test]
fn a_mebibyte_of_each_is_loaded_or_refused_in_time() {
    for (name, text) in texts() {
        let started = Instant::now();
        let loaded = Module::parse(&text).map_err(|error| vec![error]).and_then(|module| {
            let problems = check(&module);
            let program = Program::link(std::slice::from_ref(&module))?;
            assert_eq!(problems, [], "{name}");
            Ok(program)
        });
        if let Ok(program) = &loaded {
            for kernel in program.kernels() {
                let _ = program.thread_bound(kernel);
            }
        }
        let took = started.elapsed();
        if let Err(errors) = &loaded {
            assert!(!errors.is_empty() && errors.len() <= 64, "{name}: {} errors", errors.len());
            assert!(errors.iter().all(|error| error.text.len() <= 120), "{name}");
        }
        assert!(took < TIME, "{name}: {took:?}");
        assert!(peak() < MEMORY, "{name}: {} KiB", peak());
    }
}

/// The most memory that this process has had, in KiB.
fn peak() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}
