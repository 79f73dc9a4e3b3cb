//! Texts that are refused: why, and at which line.

use berth_ptx::{LoadError, Module, Program, Reason, check};

const HEAD: &str = ".version 7.8\n.target sm_80\n.address_size 64\n";

/// What is wrong with a kernel of this body, whose first line is line 8.
fn refused(body: &str) -> Vec<(u32, String)> {
    let text = format!(
        "{HEAD}.visible .entry k(.param .u64 a)\n{{\n.reg .b64 %rd<9>; .reg .b32 %r<9>; .reg .f32 %f<9>; .reg .pred %p<9>;\n\
         .reg .f64 %fd<9>; .reg .b16 %rs<9>; .reg .u32 u;\n{body}\nret;\n}}\n"
    );
    let told = |error: LoadError| (error.line, error.reason.to_string());
    match Module::parse(&text) {
        Err(error) => vec![told(error)],
        Ok(module) => check(&module).into_iter().map(told).collect(),
    }
}

#[test]
fn what_is_not_covered_is_told_by_line() {
    let unsupported = |what: &str| format!("not covered by the software GPU: {what}");
    for (instruction, what) in [
        ("wgmma.fence.sync.aligned;", "the instruction wgmma"),
        ("mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32 {%f1}, {%r1}, {%r2}, {%f1};", "the instruction mma"),
        ("tex.2d.v4.f32.f32 {%f1, %f2, %f3, %f4}, [%rd1, {%f1, %f2}];", "the instruction tex"),
        ("cp.async.ca.shared.global [%r1], [%rd1], 16;", "the instruction cp"),
        ("add.f16 %rs1, %rs2, %rs3;", "the type .f16"),
        ("add.rz.f64 %fd1, %fd2, %fd3;", "add that is not rounded to nearest"),
        ("shfl.down.b32 %r1, %r2, 1, 31;", "shfl.down.b32"),
        ("ld.global.b128 %rd1, [%rd2];", "the type .b128"),
        ("fence.proxy.async;", "the modifier .proxy"),
        ("vote.ballot.b32 %r1, %p1;", "vote.ballot.b32"),
    ] {
        let told = refused(&format!("mov.u32 %r1, 1;\n{instruction}"));
        assert_eq!(told.len(), 1, "{instruction}: {told:?}");
        assert!(told[0].0 == 9 && told[0].1 == unsupported(what), "{instruction}: {told:?}");
    }
}

#[test]
fn operands_are_checked() {
    for (instruction, reason) in [
        ("add.s64 %r1, %r2, %r3;", "%r2 is a register of .b32; the instruction wants .s64"),
        ("add.f32 %f1, u, %f2;", "u is a register of .u32; the instruction wants .f32"),
        ("add.s32 %r1, %f1, %r2;", "%f1 is a register of .f32; the instruction wants .s32"),
        ("add.s32 %r1, %r9, %r2;", "\"%r9\" is not declared"),
        ("add.s32 %r1, %r2;", "2 operands; 3 are expected"),
        ("add.f32 %f1, %f2, 1;", "an operand is not of .f32"),
        ("mov.u32 %tid, %r1;", "\"%tid\" is not declared"),
        ("mov.u32 %laneid, %r1;", "%laneid cannot be written"),
        ("selp.u32 %r1, %r2, %r3, %r4;", "%r4 is a register of .b32; the instruction wants .pred"),
        ("@%r1 bra L; L:", "%r1 is a register of .b32; the instruction wants .pred"),
        ("bra M;", "\"M\" is not declared"),
        ("ld.global.u32 %r1, [%r2];", "an address in %r2, which is a register of .b32"),
        ("ld.global.u32 %rs1, [%rd1];", "%rs1 is a register of .b16; the instruction wants .u32"),
        ("st.param.u64 [a], %rd1;", "a store to the param space"),
        ("cvt.s32.f32 %r1, %f1;", "a conversion from .f32 to .s32 without .rni, .rzi, .rmi or .rpi"),
        ("cvt.f32.f64 %f1, %fd1;", "a conversion from .f64 to .f32 without .rn, .rz, .rm or .rp"),
        ("call nobody, ();", "\"nobody\" is not declared"),
        ("ld.shared.u32 %r1, [a];", "a is a parameter, not in the shared space"),
        ("brx.idx %r1, T;", "T is no list of .branchtargets"),
    ] {
        let told = refused(instruction);
        assert_eq!(told, [(8, reason.to_owned())], "{instruction}");
    }
    // All mistakes are told, not only the first.
    let told = refused("add.s64 %r1, %r2, %r3;\nmov.u32 %r1, 1;\nbra M;");
    assert_eq!(told.iter().map(|(line, _)| *line).collect::<Vec<_>>(), [8, 10]);
}

#[test]
fn what_is_no_ptx_is_told_by_line() {
    for (text, line, reason) in [
        ("", 1, "this is no PTX: it does not begin with .version"),
        (".version 99.0\n", 1, "not covered by the software GPU: PTX 99.0; the newest that is known is 9.0"),
        (
            ".version 7.8\n.target sm_80\n.address_size 32\n",
            3,
            "not covered by the software GPU: an .address_size other",
        ),
        (
            ".version 7.8\n.target sm_80\n.entry k(.reg .u32 a) { ret; }",
            3,
            "not covered by the software GPU: parameters in",
        ),
        (".version 7.8\n.target sm_80\n.entry k()\n{\n\nmov.u32 %r1 %r2;\n}", 6, "',' or ';' is expected, not \"%r2\""),
        (".version 7.8\n.target sm_80\n.entry k()\n{\n/* never\nends", 5, "a comment that does not end"),
        (".version 7.8\n.target sm_80\n.global .texref t;", 3, "not covered by the software GPU: textures"),
        (".version 7.8\n.target sm_80\n.global .u32 x[99999999999];", 3, "a variable of 399999999996 bytes"),
        (".version 7.8\n.target sm_80\n.global .u32 x[2] = {1, 2, 3};", 3, "x has more initial values than elements"),
        (".version 7.8\n.target sm_80\n.entry k() { ret;", 3, "a statement is expected, not the end"),
        (".version 7.8\n.target sm_80\n.entry k() { mov.u32 a, 0x1g; }", 3, "a number \"0x1g\""),
    ] {
        let error = Module::parse(text).unwrap_err();
        assert!(error.line == line && error.reason.to_string().starts_with(reason), "{text}: {error}");
    }
    assert_eq!(refused("{{{{ {{{{ ".repeat(9).as_str())[0].1, "blocks that are nested more than 64 deep");
    let many = refused(".reg .b32 %x<4000000000>;");
    assert_eq!(many, [(8, "a function with more than 65534 registers and constants".into())]);
    let local = refused(".local .b8 x[2000000];");
    assert_eq!(local, [(8, "local variables of more than 1048576 bytes".into())]);
    let taken = format!("{HEAD}.entry k(.param .b8 a[30000], .param .b8 b[3000]) {{ ret; }}");
    let taken = check(&Module::parse(&taken).unwrap())[0].to_string();
    assert_eq!(taken, "line 4: parameters of 33000 bytes; a kernel takes at most 32764: k");
    assert_eq!(refused("L:\nL:"), [(9, "\"L\" is declared twice".into())]);
    assert_eq!(Module::parse(&" ".repeat(5 << 20)).unwrap_err().line, 1);
}

#[test]
fn modules_are_linked_by_name_and_prototype() {
    let text = |body: &str| format!("{HEAD}{body}");
    let link = |texts: &[String]| {
        let modules: Vec<_> = texts.iter().map(|text| Module::parse(text).unwrap()).collect();
        Program::link(&modules)
            .map_err(|errors| errors.into_iter().map(|e| (e.module, e.line, e.reason)).collect::<Vec<_>>())
    };
    let caller = text(".extern .func (.param .b32 r) f(.param .b64 a);\n.entry k() { ret; }\n");
    let callee = text(".visible .func (.param .b32 r) f(.param .b64 a) { ret; }\n");
    let wrong = text(".visible .func (.param .b32 r) f(.param .b32 a) { ret; }\n");
    let weak = text(".weak .func (.param .b32 r) f(.param .b64 a) { ret; }\n");
    let own = text(".func g() { ret; }\n");
    assert_eq!(link(&[caller.clone(), callee.clone()]).unwrap().kernels(), ["k"]);
    assert!(link(&[weak.clone(), caller.clone(), callee.clone(), weak]).is_ok());
    assert!(link(&[own.clone(), own]).is_ok());
    assert_eq!(link(std::slice::from_ref(&caller)).unwrap_err(), [(0, 4, Reason::Missing("f".into()))]);
    assert_eq!(link(&[callee.clone(), callee]).unwrap_err(), [(1, 4, Reason::Doubled("f".into()))]);
    let prototype = Reason::Prototype("f".into(), "it takes values of [4] bytes, not [8]".into());
    assert_eq!(link(&[wrong, caller]).unwrap_err(), [(1, 4, prototype)]);
    let misused = text(".visible .func f(.param .b64 a) { ret; }\n.entry k() {\n.param .b32 x;\ncall f, (x);\n}\n");
    let prototype = Reason::Prototype("f".into(), "it takes values of [8] bytes, not [4]".into());
    assert_eq!(link(&[misused]).unwrap_err(), [(0, 7, prototype)]);
}

#[test]
fn a_thread_is_bounded_unless_it_may_go_back_or_wait() {
    let bound = |body: &str| {
        let text = format!(
            "{HEAD}.func f() {{ ret; }}\n.visible .entry k()\n{{\n.reg .b64 %rd<3>; .reg .b32 %r<3>; .reg .pred %p<2>;\n{body}\nret;\n}}\n\
             .visible .entry behind() {{ L: bra L; }}\n"
        );
        let program = Program::link(&[Module::parse(&text).unwrap()]).unwrap();
        assert_eq!(program.thread_bound("behind"), None);
        assert_eq!(program.thread_bound("none"), None);
        program.thread_bound("k")
    };
    let empty = bound("").unwrap();
    // Two instructions, and a register for the constant.
    assert_eq!(bound("mov.u32 %r1, 1;\nadd.u32 %r1, %r1, %r1;"), Some(empty + 3));
    assert!(bound("setp.eq.u32 %p1, %r1, 0;\n@%p1 bra L;\nmov.u32 %r1, 1;\nL:").is_some());
    assert!(bound("ts: .branchtargets A, B;\nbrx.idx %r1, ts;\nA: mov.u32 %r1, 1;\nB:").is_some());
    assert!(bound(".local .align 4 .b8 frame[4096];").unwrap() >= empty + 4096 / 16);
    for unbounded in [
        "L: setp.eq.u32 %p1, %r1, 0;\n@%p1 bra L;",
        "L: bra L;",
        "L: @%p1 bra L;",
        "A: ts: .branchtargets A, B;\nbrx.idx %r1, ts;\nB:",
        "call f, ();",
        "nanosleep.u32 1000;",
        "mov.u64 %rd1, %globaltimer;",
    ] {
        assert_eq!(bound(unbounded), None, "{unbounded}");
    }
}
