//! `[[decoder]]` and `[[function]]`.

use std::{fs, process::Command};

use super::{PORT, assert_cases, check, mistakes, mistakes_with};

#[test]
fn decoders_and_functions() {
    assert_cases(
        PORT,
        &[
            (
                "[[decoder]]\nname = \"a b\"\nalgorithm = \"mwpm\"\ndepth = 2\nmodel = \"gone.dem\"",
                &[
                    "7:8: decoder[0].name: \"a b\" is not a name; use 1 to 64 printable ASCII characters, no spaces",
                    "9:1: decoder[0].depth: means nothing here; it belongs to algorithm = \"lut\" or \"multi_error_lut\", or inner = \"lut\", leave it out",
                    "10:9: decoder[0].model: there is no file gone.dem; relative paths start at the folder of the configuration file",
                ],
            ),
            (
                "[[function]]\nname = \"f\"\nhandler = \"builtin:qec_decode\"\ndecoder = \"d5\"\n[[function]]\nname = \"f\"\n\
                 handler = \"builtin:rpc_incr\"\n[[function]]\nname = \"g\"\nhandler = \"lib.so\"\ndispatch = \"ring\"\nargs = \
                 [\"int32\"]",
                &[
                    "9:11: function[0].decoder: there is no decoder \"d5\"; there are none",
                    "11:8: function[1].name: \"f\" is taken; each name is used once",
                    "12:11: function[1].handler: \"rpc_incr\" is not built in; did you mean `rpc_increment`?",
                    "13:1: function[2].dispatch: port \"a\" has no workers; give it rpc.worker_cpus",
                    "15:11: function[2].handler: \"lib.so\" is not a handler; write \"builtin:NAME\", \"plugin:PATH#SYMBOL\" or \
                     \"gpu:PATH#SYMBOL\"",
                ],
            ),
            (
                "[[function]]\nname = \"f\"\nhandler = \"plugin:gone.so#f\"\nargs = [\"int33\", \"array_uint8\"]\ntable = \"t\"",
                &[
                    "6:1: function[0].abi: is missing; write abi = \"host_call\" or \"device_call\"",
                    "8:11: function[0].handler: there is no file gone.so; relative paths start at the folder of the configuration file",
                    "9:9: function[0].args[0]: \"int33\" is not a type; there are: uint8, int32, int64, float32, float64, \
                     array_uint8[N], array_int32[N], array_float32[N], array_float64[N], bit_packed[N]",
                    "9:18: function[0].args[1]: \"array_uint8\" is not a type; there are: uint8, int32, int64, float32, float64, \
                     array_uint8[N], array_int32[N], array_float32[N], array_float64[N], bit_packed[N]",
                    "10:1: function[0].table: means nothing here; it belongs to handler = \"builtin:mock_decode\", leave it out",
                ],
            ),
        ],
    );
}

#[test]
fn a_model_that_is_none_is_reported_with_its_own_line() {
    let decoder = "[[decoder]]\nname = \"d\"\nalgorithm = \"mwpm\"\nmodel = \"m.dem\"\n";
    let text = format!("{PORT}{decoder}");
    let found = mistakes_with(&text, &[("m.dem", "error(0.1) D0 L0\nerror(1.5) D1\n")]);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(
        found[0].starts_with("berth.toml:9:9: decoder[0].model: not a detector error model: m.dem:2:"),
        "{found:?}"
    );
    // Three detectors in one error: a hyperedge, which matching cannot take.
    let found = mistakes_with(&text, &[("m.dem", "error(0.1) D0 D1 D2 L0\n")]);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].starts_with("berth.toml:9:9: decoder[0].model: m.dem suits another algorithm: "), "{found:?}");
}

#[test]
fn measurements_and_tables_are_read_too() {
    let decoder = "[[decoder]]\nname = \"d\"\nalgorithm = \"mwpm\"\nmodel = \"m.dem\"\nmeasurements = \"s.txt\"\n";
    let model = ("m.dem", "error(0.1) D0 L0\nerror(0.1) D0 D1\nerror(0.1) D1\n");
    for (matrix, wanted) in [
        ("0 x -1", "\"x\" is not a number; write each detector's measurements and -1"),
        ("0 1", "the last row does not end: -1 is missing; write each detector's measurements and -1"),
        ("0 1 -1", "has 1 rows; the model has 2 detectors"),
    ] {
        let found = mistakes_with(&format!("{PORT}{decoder}"), &[model, ("s.txt", matrix)]);
        assert_eq!(found, [format!("berth.toml:10:16: decoder[0].measurements: s.txt: {wanted}")]);
    }
    let function = "[[function]]\nname = \"m\"\nhandler = \"builtin:mock_decode\"\ntable = \"t.txt\"\n";
    let found = mistakes_with(&format!("{PORT}{function}"), &[("t.txt", "NUM_DATA 1\nWHAT\n")]);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].starts_with("berth.toml:9:9: function[0].table: not a syndrome file: t.txt:2: "), "{found:?}");
}

#[test]
fn plug_ins_are_loaded() {
    let function = |symbol| {
        format!("{PORT}[[function]]\nname = \"f\"\nabi = \"host_call\"\nhandler = \"plugin:lib.so#{symbol}\"\n")
    };
    let found = mistakes_with(&function("f"), &[("lib.so", "not a library")]);
    assert_eq!(found.len(), 1, "{found:?}");
    let prefix = "berth.toml:9:11: function[0].handler: plug-in lib.so ";
    assert!(found[0].starts_with(&format!("{prefix}is not a shared library that can be loaded: ")), "{found:?}");

    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("f.c");
    fs::write(&source, "void f(const void *rx, void *tx, unsigned long size) { (void)rx; (void)tx; (void)size; }")
        .unwrap();
    let library = folder.path().join("lib.so");
    let built = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status().unwrap();
    assert!(built.success());
    assert_eq!(check(&folder, &function("f")).status.code(), Some(0));
    let output = check(&folder, &function("g"));
    assert_eq!(output.status.code(), Some(2));
    let stderr = String::from_utf8(output.stderr).unwrap();
    let stderr = stderr.replace(&format!("{}/", folder.path().display()), "");
    let wanted = "exports no symbol \"g\"; C++ needs extern \"C\", Rust #[unsafe(no_mangle)]\n";
    assert_eq!(stderr, format!("{prefix}{wanted}"));
}

#[test]
fn a_decoding_server_has_one_place() {
    let functions = "[port.rpc]\nworker_cpus = [0]\n[[function]]\nname = \"enqueue_syndromes\"\nhandler = \
                     \"builtin:enqueue_syndromes\"\ndispatch = \"ring\"\n[[function]]\nname = \"get_corrections\"\n\
                     handler = \"builtin:get_corrections\"\n";
    let wanted = "berth.toml:14:11: function[1].handler: port \"a\" runs it elsewhere than \"enqueue_syndromes\", without \
                  its sessions; give both the same dispatch and ring";
    assert_eq!(mistakes(&format!("{PORT}{functions}")), [wanted]);
    let rings = functions.replace("= [0]\n", "= [0]\nring = [{ name = \"r\", worker_cpus = [0] }]\n");
    let elsewhere = format!("{PORT}{rings}dispatch = \"ring\"\nring = \"r\"\n");
    assert_eq!(mistakes(&elsewhere), [wanted.replace(":14:", ":15:")]);
    let folder = tempfile::tempdir().unwrap();
    let together = elsewhere.replace("\"ring\"\n[[", "\"ring\"\nring = \"r\"\n[[");
    assert_eq!(check(&folder, &together).status.code(), Some(0));
}

#[test]
fn decoders_that_take_no_outcomes_and_have_no_confidence_name_those_that_do() {
    let both = "measurements = \"both.txt\"\n";
    let decoder = |algorithm: &str, more: &str| {
        format!("[[decoder]]\nname = \"d\"\nalgorithm = \"{algorithm}\"\nmodel = \"m.dem\"\n{more}")
    };
    let function = "[[function]]\nname = \"f\"\nhandler = \"builtin:qec_decode\"\ndecoder = \"d\"\n";
    let asked = format!("{function}shots = \"soft8\"\nconfidence = true\n");
    let files =
        |model: &'static str| [("m.dem", model), ("both.txt", "0 -1 0 1 -1\n"), ("three.txt", "0 -1 0 1 2 -1 2 -1\n")];
    let model = "error(0.01) D0 L0\nerror(0.05) D0 D1\nerror(0.02) D1\n";
    let (shots, confidence) = (
        "function[0].shots: decoder \"d\" takes events alone: ",
        "function[0].confidence: decoder \"d\" has no confidence: ",
    );
    let (weigh, other) = (
        "only mwpm and bp_osd weigh the errors of each shot anew",
        "only mwpm finds the lightest answer with other flips",
    );
    for algorithm in ["lut", "multi_error_lut", "relay_bp", "correlated_mwpm", "belief_mwpm"] {
        let found = mistakes_with(&format!("{PORT}{}{asked}", decoder(algorithm, both)), &files(model));
        assert_eq!(
            found,
            [format!("berth.toml:15:9: {shots}{weigh}"), format!("berth.toml:16:14: {confidence}{other}")],
            "{algorithm}"
        );
    }
    let found = mistakes_with(&format!("{PORT}{}{asked}", decoder("bp_osd", both)), &files(model));
    assert_eq!(found, [format!("berth.toml:16:14: {confidence}{other}")]);
    // A measurement whose error the model does not have.
    let found =
        mistakes_with(&format!("{PORT}{}{asked}", decoder("mwpm", both)), &files("error(0.1) D0 L0\nerror(0.1) D1"));
    let wanted = "measurement 0 makes up D0 D1, and no error of the model flips just these; name the measurements of each \
                  detector, and make the model with noise on them";
    assert_eq!(found, [format!("berth.toml:15:9: {shots}{wanted}")]);
    // A code without boundary.
    let ring = "error(0.1) D0 D1\nerror(0.1) D1 D2\nerror(0.1) D0 D2 L0\n";
    let found = mistakes_with(&format!("{PORT}{}{function}confidence = true\n", decoder("mwpm", "")), &files(ring));
    assert_eq!(found.len(), 1);
    let wanted = "errors between detectors flip L0 an odd number of times in a circle through D";
    assert!(found[0].starts_with(&format!("berth.toml:14:14: {confidence}{wanted}")), "{found:?}");

    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files(model) {
        fs::write(folder.path().join(name), text).unwrap();
    }
    let good = check(&folder, &format!("{PORT}{}{asked}", decoder("mwpm", both)));
    assert_eq!((good.status.code(), &*String::from_utf8(good.stderr).unwrap()), (Some(0), ""));
    let out = String::from_utf8(good.stdout).unwrap();
    assert!(out.ends_with("function f: qec_decode with d, soft8 of 2 measurements, with confidence\n"), "{out}");
}

#[test]
fn a_function_names_a_ring_that_each_port_has() {
    let ports = format!(
        "{PORT}[[port.rpc.ring]]\nname = \"decoders\"\nslots = 16\nworker_cpus = [0]\n{}",
        PORT.replace("\"a\"", "\"b\"")
    );
    let function = "[[function]]\nname = \"f\"\nhandler = \"builtin:rpc_increment\"\n";
    let ring = "dispatch = \"ring\"\nring = \"decoders\"\n";
    let found = mistakes(&format!("{ports}{function}{ring}"));
    assert_eq!(found, ["berth.toml:19:8: function[0].ring: port \"b\" has no ring \"decoders\"; there are none"]);
    let found = mistakes(&format!("{ports}{function}{}", ring.replace("ders", "der")));
    assert_eq!(
        found,
        ["berth.toml:19:8: function[0].ring: port \"a\" has no ring \"decoder\"; did you mean `decoders`?"]
    );
    let found = mistakes(&format!("{ports}{function}dispatch = \"ring\"\n"));
    let wanted = "berth.toml:15:1: function[0].dispatch: port \"a\" has no workers of its own; give it rpc.worker_cpus, or \
                  name one of its rings";
    assert_eq!(found, [wanted]);
    for place in ["", "dispatch = \"inline\"\n"] {
        let found = mistakes(&format!("{PORT}{function}{place}ring = \"decoders\"\n"));
        let wanted = "function[0].ring: means nothing here; it belongs to dispatch = \"ring\", leave it out";
        assert_eq!(found, [format!("berth.toml:{}:1: {wanted}", 9 + place.lines().count())]);
    }

    let (one, _) = ports.split_at(ports.rfind("[[port]]").unwrap());
    let folder = tempfile::tempdir().unwrap();
    let good = check(&folder, &format!("{one}{function}{ring}"));
    assert_eq!((good.status.code(), &*String::from_utf8(good.stderr).unwrap()), (Some(0), ""));
    let out = String::from_utf8(good.stdout).unwrap();
    assert!(out.contains(", rpc V24 64 x 2048 B, inline, ring decoders 16\n"), "{out}");
    let idle = check(&folder, &format!("{one}{function}"));
    assert_eq!(idle.status.code(), Some(0));
    let wanted = "berth.toml:7:8: port[0].rpc.ring[0].name: no function names it; write ring = \"decoders\" in those that are \
                  to use it\n";
    let stderr = String::from_utf8(idle.stderr).unwrap();
    assert!(stderr.starts_with("warning: ") && stderr.ends_with(wanted), "{stderr}");
}

#[test]
fn decoders_say_how_they_decode() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(
        folder.path().join("m.dem"),
        "detector(0) D0\ndetector(1) D1\nerror(0.01) D0 ^ D0 D1 L0\nerror(0.01) D1\n",
    )
    .unwrap();
    for (keys, said) in [
        ("\"correlated_mwpm\"", "correlated_mwpm"),
        ("\"relay_bp\"\nlegs = 3", "relay_bp of 8 relays, 3 legs of 60 iterations, fixed point"),
        (
            "\"relay_bp\"\nrelays = 1\narithmetic = \"float64\"",
            "relay_bp of 1 relays, 4 legs of 60 iterations, floating point",
        ),
        (
            "\"window\"\nwindow = 2\ncommit = 1\nparallel = 2",
            "parallel windows of 2 rounds, 1 decided at a time, by mwpm",
        ),
        ("\"belief_mwpm\"", "belief_mwpm"),
        ("\"bp_osd\"\norder = 3", "bp_osd of 60 iterations, ordered statistics of order 3"),
        ("\"bp_osd\"\nstatistics = \"localized\"", "bp_osd of 60 iterations, localized statistics of order 10"),
        (
            "\"window\"\nwindow = 2\ncommit = 1\ninner = \"correlated_mwpm\"",
            "windows of 2 rounds, 1 decided at a time, by correlated_mwpm",
        ),
        (
            "\"window\"\nwindow = 2\ncommit = 1\ninner = \"bp_osd\"\nstatistics = \"localized\"",
            "windows of 2 rounds, 1 decided at a time, by bp_osd of 60 iterations, localized statistics of order 10",
        ),
    ] {
        let decoder = format!("[[decoder]]\nname = \"d\"\nmodel = \"m.dem\"\nalgorithm = {keys}\n");
        let output = check(&folder, &format!("{PORT}{decoder}"));
        let out = String::from_utf8(output.stdout).unwrap();
        assert!(out.contains(&format!("\ndecoder 0 d: {said}, ")), "{out}{}", String::from_utf8_lossy(&output.stderr));
    }
}
