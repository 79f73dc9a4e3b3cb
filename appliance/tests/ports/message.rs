//! `berth message`: the messages of ring kernels, for whoever writes a client.

use std::{
    fs,
    io::Write as _,
    path::Path,
    process::{Command, Output, Stdio},
};

fn message(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_berth")).arg("message").args(args).output().unwrap()
}

fn printed(args: &[&str]) -> String {
    let output = message(args);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn refused(args: &[&str]) -> String {
    let output = message(args);
    assert_eq!(output.status.code(), Some(1));
    String::from_utf8(output.stderr).unwrap()
}

/// 10 + 20, as in the documentation.
const JSON: &str = r#"{"MessageId": "12345678-90ab-cdef-1234-567890abcdef", "Priority": 128, "A": 10.0, "B": 20}"#;
const ID: &str = "78563412ab90efcd1234567890abcdef";

/// `Wide` has every type.
const WIDE: &str = "[[port]]\nname = \"a\"\ndriver = \"udp\"\nbind = \"127.0.0.1:0\"\n[[message]]\nname = \"Wide\"\nmembers = [\"a bool\", \"b i8\", \"c u8?\", \"d i16?\", \"e u16\", \"int i32?\", \"g u32\", \
                    \"h i64\", \"i u64?\", \"j f32\", \"k f64?\", \"l guid?\", \"m bool?\"]\n";
const WIDE_JSON: &str = r#"{
  "a": true,
  "b": -128,
  "c": 255,
  "d": -2,
  "e": 65535,
  "int": null,
  "g": 4294967295,
  "h": -9223372036854775808,
  "i": 18446744073709551615,
  "j": "0x7fc00001",
  "k": 0.1,
  "l": "00112233-4455-6677-8899-aabbccddeeff",
  "m": true
}
"#;
/// Raw: the members one after the other.
const WIDE_RAW: &str = concat!(
    "01",                                 // a
    "80",                                 // b
    "01ff",                               // c
    "01feff",                             // d
    "ffff",                               // e
    "0000000000",                         // int, absent
    "ffffffff",                           // g
    "0000000000000080",                   // h
    "01ffffffffffffffff",                 // i
    "0100c07f",                           // j
    "019a9999999999b93f",                 // k: 0x3FB999999999999A
    "0133221100554477668899aabbccddeeff", // l
    "0101",                               // m
);

fn config(folder: &Path) -> String {
    let file = folder.join("berth.toml");
    fs::write(&file, WIDE).unwrap();
    file.display().to_string()
}

#[test]
fn messages_are_written_and_read_in_every_format() {
    let zeros = "00000000000000000000000000000000";
    let (head, sum) = (format!("{ID}80"), "000020410000a041");
    let dotcompute = format!("05{head}00{zeros}{sum}");
    let memorypack = format!("05{head}00000000{zeros}{sum}");
    let raw = format!("{head}00{zeros}{sum}");
    let short = format!("05{head}00{sum}");
    assert_eq!(printed(&["encode", "VectorAddRequest", JSON]), format!("{dotcompute}\n"));
    for (format, hex) in [("dotcompute", &dotcompute), ("memorypack", &memorypack), ("raw", &raw)] {
        assert_eq!(printed(&["encode", "VectorAddRequest", "--format", format, JSON]), format!("{hex}\n"));
        let read = "{\n  \"MessageId\": \"12345678-90ab-cdef-1234-567890abcdef\",\n  \"Priority\": 128,\n  \"CorrelationId\": null,\n  \
                    \"A\": 10.0,\n  \"B\": 20.0\n}\n";
        assert_eq!(printed(&["decode", "VectorAddRequest", hex]), read);
        assert_eq!(printed(&["decode", "VectorAddRequest", hex, "--format", format]), read);
        assert_eq!(printed(&["decode", "VectorAddRequest", &short]), read);
    }
    let bytes = JSON.replace("12345678-90ab-cdef-1234-567890abcdef", ID);
    assert_eq!(printed(&["encode", "VectorAddRequest", &bytes]), format!("{dotcompute}\n"), "bytes as they are");
}

#[test]
fn configured_messages_files_and_standard_input() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path());
    assert_eq!(
        printed(&["--config", &config, "encode", "Wide", "--format", "raw", WIDE_JSON]),
        format!("{WIDE_RAW}\n")
    );
    let file = folder.path().join("wide").display().to_string();
    let mut child = Command::new(env!("CARGO_BIN_EXE_berth"))
        .args(["message", "--config", &config, "encode", "Wide", "--format", "memorypack", "--output", &file])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(WIDE_JSON.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
    // Of raw's, a count and 1 + 3 + 7 + 7 + 3 bytes of padding more.
    assert_eq!(fs::read(&file).unwrap().len(), WIDE_RAW.len() / 2 + 22);
    assert_eq!(printed(&["--config", &config, "decode", "Wide", "--input", &file]), WIDE_JSON);
}

#[test]
fn mistakes_are_told_with_what_would_be_right() {
    let add = |json: &str| refused(&["encode", "VectorAddRequest", json]);
    assert_eq!(
        refused(&["show", "Nobody"]),
        "berth: there is no message \"Nobody\"; there are: VectorAddRequest, VectorAddResponse\n"
    );
    assert!(add("[").starts_with("berth: a JSON object is wanted: "));
    assert_eq!(add("{}"), "berth: MessageId is missing; it is a guid\n");
    let with = |from: &str, to: &str| add(&JSON.replace(from, to));
    assert_eq!(with("128", "256"), "berth: Priority is 256; a whole number that fits u8 is wanted\n");
    assert_eq!(with("128", "-1"), "berth: Priority is -1; a whole number that fits u8 is wanted\n");
    let wanted = "a number, \"inf\", \"-inf\", or the bits as in \"0x00000000\" is wanted\n";
    assert_eq!(with("10.0", "1e39"), format!("berth: A is 1e+39; {wanted}"));
    assert_eq!(with("10.0", "\"0x0\""), format!("berth: A is \"0x0\"; {wanted}"));
    assert!(
        with("-cdef-", "-cde-f")
            .starts_with("berth: MessageId is \"12345678-90ab-cde-f1234-567890abcdef\"; a Guid such as ")
    );
    assert_eq!(
        with("\"A\"", "\"a\": 1, \"A\""),
        "berth: VectorAddRequest has no member \"a\"; it has: MessageId, Priority, CorrelationId, A, B\n"
    );
    assert_eq!(
        refused(&["decode", "VectorAddRequest", "0500"]),
        "berth: 2 bytes are no VectorAddRequest: its bytes are dotcompute 43, memorypack 46, raw 42 or 27 without a CorrelationId; in \
         dotcompute and memorypack the first is 5\n"
    );
    assert_eq!(
        refused(&["decode", "VectorAddRequest", "0"]),
        "berth: \"0\" is not a row of hex digits, two for each byte\n"
    );
}

#[test]
fn messages_are_listed_and_shown() {
    let list = printed(&["list"]);
    let columns: Vec<Vec<_>> = list.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(columns[0], ["name", "dotcompute", "memorypack", "raw", "response", "fingerprint"]);
    assert_eq!(columns[1][..5], ["VectorAddRequest", "43", "46", "42", "VectorAddResponse"]);
    assert_eq!(columns[2][..5], ["VectorAddResponse", "39", "42", "38", "-"]);
    let show = printed(&["show", "VectorAddRequest"]);
    let lines: Vec<_> = show.lines().collect();
    assert_eq!(lines[0], "VectorAddRequest{guid MessageId;u8 Priority;guid? CorrelationId;f32 A;f32 B;}");
    assert_eq!(lines[1], format!("fingerprint {}", columns[1][5]));
    assert_eq!(
        lines[2..].join("\n"),
        concat!(
            "member         type   dotcompute  memorypack  raw\n",
            "MessageId      guid   1           1           0\n",
            "Priority       u8     17          17          16\n",
            "CorrelationId  guid?  18          18          17\n",
            "A              f32    35          38          34\n",
            "B              f32    39          42          38",
        )
    );
}

/// Reads one message in every format and writes it in every other, from odd addresses.
const PROGRAM: &str = r#"
#include "message.h"
#include <stdio.h>
#include <string.h>
static void print(const uint8_t *bytes, size_t len) {
    while (len--) printf("%02x", *bytes++);
    putchar('\n');
}
int main(int argc, char **argv) {
    uint8_t in[512], out[512];
    NAME message;
    for (int i = 1; i < argc; i++) {
        size_t len = strlen(argv[i]) / 2;
        for (size_t at = 0; at < len; at++) sscanf(argv[i] + 2 * at, "%2hhx", &in[1 + at]);
        memset(&message, 0xEE, sizeof message);
        memset(out, 0xEE, sizeof out);
        if (NAME_read_dotcompute(in + 1, len, &message) && NAME_read_memorypack(in + 1, len, &message)
            && NAME_read_raw(in + 1, len, &message)) { puts("none"); continue; }
        NAME_write_dotcompute(&message, out + 1); print(out + 1, NAME_dotcompute_LEN);
        NAME_write_memorypack(&message, out + 1); print(out + 1, NAME_memorypack_LEN);
        NAME_write_raw(&message, out + 1); print(out + 1, NAME_raw_LEN);
    }
    USE
}
"#;

/// Compiles the header of a message as C and as C++, and gives its program these messages.
fn through_c(name: &str, config: &[&str], use_it: &str, messages: &[&str]) -> [String; 2] {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("message.h"), printed(&[config, &["header", name]].concat())).unwrap();
    let source = PROGRAM.replace("NAME", name).replace("USE", use_it);
    [("cc", "c", "c11"), ("c++", "cpp", "c++17")].map(|(compiler, extension, standard)| {
        let (file, program) = (folder.path().join(format!("main.{extension}")), folder.path().join(compiler));
        fs::write(&file, &source).unwrap();
        let flags = ["-O2", "-Wall", "-Wextra", "-Werror", "-fsanitize=undefined", "-fno-sanitize-recover"];
        let mut command = Command::new(compiler);
        command.arg(format!("-std={standard}")).args(flags).arg(file).arg("-o").arg(&program);
        assert!(command.status().unwrap().success(), "{compiler}");
        let output = Command::new(program).args(messages).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    })
}

#[test]
fn a_c_header_reads_and_writes_the_same_bytes() {
    let encoded = |format| printed(&["encode", "VectorAddRequest", "--format", format, JSON]).trim().to_owned();
    let all = ["dotcompute", "memorypack", "raw"].map(encoded);
    let short = format!("{}00{}", &all[0][..36], &all[0][70..]);
    let dirty = all[1].replacen("8000000000", "8000eeeeee", 1);
    let counted = format!("06{}", &all[0][2..]);
    let sum =
        "return message.A + message.B == 30.0f && message.Priority == 128 && !message.CorrelationId.present ? 0 : 1;";
    let messages = [&all[0], &all[1], &all[2], &short, &dirty, &counted, &all[0][2..80], &all[2]];
    let wanted = all.each_ref().map(|hex| format!("{hex}\n")).concat();
    let wanted = format!("{}none\nnone\n{wanted}", wanted.repeat(5));
    for printed in through_c("VectorAddRequest", &[], sum, &messages) {
        assert_eq!(printed, wanted);
    }

    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path());
    let config = ["--config", &config];
    let all = ["dotcompute", "memorypack", "raw"].map(|format| {
        printed(&[&config[..], &["encode", "Wide", "--format", format, WIDE_JSON]].concat()).trim().to_owned()
    });
    let wanted = all.each_ref().map(|hex| format!("{hex}\n")).concat().repeat(3);
    // A member that is a word of C has an underscore.
    let member = "return message.int_.present || message.e != 65535;";
    for printed in through_c("Wide", &config, member, &all.each_ref().map(String::as_str)) {
        assert_eq!(printed, wanted);
    }
}
