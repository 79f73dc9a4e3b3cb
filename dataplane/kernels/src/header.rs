//! A message as a C header, for host code and for CUDA.

use std::fmt::Write as _;

use crate::{
    Format, Scalar, Schema,
    member::Member,
    schema::{GUID, Kind, Step},
};

/// Words that C or C++ has taken; as names of members they get an underscore behind them.
const KEYWORDS: &str = " alignas alignof and and_eq asm auto bitand bitor bool break case catch char class compl concept const \
    consteval constexpr constinit const_cast continue co_await co_return co_yield decltype default delete do double \
    dynamic_cast else enum explicit export extern false float for friend goto if inline int long mutable namespace new \
    noexcept not not_eq nullptr operator or or_eq private protected public register reinterpret_cast requires restrict \
    return short signed sizeof static static_assert static_cast struct switch template this thread_local throw true try \
    typedef typeid typename typeof union unsigned using virtual void volatile wchar_t while xor xor_eq ";

const PRELUDE: &str = "
#include <stddef.h>
#include <stdint.h>

#ifndef BERTH_MESSAGE_FN
#ifdef __CUDACC__
#define BERTH_MESSAGE_FN static __host__ __device__ inline
#else
#define BERTH_MESSAGE_FN static inline
#endif
#ifdef __cplusplus
#define BERTH_MESSAGE_ASSERT(what, text) static_assert(what, text)
#else
#define BERTH_MESSAGE_ASSERT(what, text) _Static_assert(what, text)
#endif
#endif
";

impl Schema {
    /// A C header, usable from C++ and CUDA too: a packed struct that is the raw format, its offsets asserted, and for each
    /// format a reader and a writer that suit any alignment. It needs a little-endian compiler with gcc's built-in
    /// functions, as gcc, clang and nvcc are.
    pub fn c_header(&self) -> String {
        let name = self.name();
        let fingerprint = self.fingerprint();
        let mut out = format!(
            "/* Made by `berth message header {name}`.\n * {}\n * SHA-256 {fingerprint}\n */\n\
             #ifndef BERTH_MESSAGE_{name}_H\n#define BERTH_MESSAGE_{name}_H\n{PRELUDE}\n\
             /* The raw format. A nullable that is not present is zeros. */\n#pragma pack(push, 1)\ntypedef struct {name} {{\n",
            self.declaration(),
        );
        for (_, member) in self.placed() {
            let _ = writeln!(out, "    {};", declaration(member));
        }
        let _ = writeln!(out, "}} {name};\n#pragma pack(pop)\n");
        for (at, member) in self.placed() {
            let member = c_name(&member.name);
            let _ = writeln!(out, "BERTH_MESSAGE_ASSERT(offsetof({name}, {member}) == {at}, \"{name}.{member}\");");
        }
        let _ = writeln!(out, "BERTH_MESSAGE_ASSERT(sizeof({name}) == {}, \"{name}\");", self.len(Format::Raw));
        for (word, format) in Format::WORDS {
            self.c_functions(word, format, &mut out);
        }
        let _ = writeln!(out, "\n#endif");
        out
    }

    fn c_functions(&self, word: &str, format: Format, out: &mut String) {
        let (name, len, members) = (self.name(), self.len(format), self.members().len());
        let counted = format != Format::Raw;
        let count = if counted { format!(" || from[0] != {members}") } else { String::new() };
        let _ = write!(
            out,
            "\n#define {name}_{word}_LEN {len}\n\n\
             /* Reads a message of {word}; 0, or -1 if it is none. */\n\
             BERTH_MESSAGE_FN int {name}_read_{word}(const uint8_t *from, size_t len, {name} *to)\n{{\n    \
             uint8_t *raw = (uint8_t *)to;\n"
        );
        if let Some((short, value)) = self.short_len().zip(self.short).filter(|_| format == Format::DotCompute) {
            let after = len - 1 - value - GUID;
            let _ = write!(
                out,
                "    if (len == {short} && from[0] == {members} && from[{value}] == 0) {{\n        \
                 __builtin_memcpy(raw, from + 1, {value});\n        \
                 __builtin_memset(raw + {value}, 0, {GUID});\n        \
                 __builtin_memcpy(raw + {}, from + {}, {after});\n",
                value + GUID,
                value + 1,
            );
            for Step { raw, .. } in self.steps.iter().filter(|step| step.kind == Kind::Bool) {
                let _ = writeln!(out, "        raw[{raw}] = raw[{raw}] != 0;");
            }
            let _ = writeln!(out, "        return 0;\n    }}");
        }
        let _ = writeln!(out, "    if (len != {len}{count}) return -1;");
        for step in &self.steps {
            let (at, front) = step.place(format);
            step.c_copy(("raw", step.raw, 1), ("from", at + usize::from(counted), front), out);
        }
        let _ = write!(
            out,
            "    return 0;\n}}\n\n\
             /* Writes {name}_{word}_LEN bytes of {word} to `to`. */\n\
             BERTH_MESSAGE_FN void {name}_write_{word}(const {name} *from, uint8_t *to)\n{{\n    \
             const uint8_t *raw = (const uint8_t *)from;\n"
        );
        if counted {
            let _ = writeln!(out, "    to[0] = {members};");
        }
        for step in &self.steps {
            let (at, front) = step.place(format);
            step.c_copy(("to", at + usize::from(counted), front), ("raw", step.raw, 1), out);
        }
        let _ = writeln!(out, "}}");
    }
}

impl Step {
    /// Statements that copy it from one place to another: of each the array, the offset, and the bytes before a nullable's
    /// value.
    fn c_copy(
        &self,
        (to, at, front): (&str, usize, usize),
        (from, its, before): (&str, usize, usize),
        out: &mut String,
    ) {
        let len = self.len;
        let _ = match self.kind {
            Kind::Plain => writeln!(out, "    __builtin_memcpy({to} + {at}, {from} + {its}, {len});"),
            Kind::Bool => writeln!(out, "    {to}[{at}] = {from}[{its}] != 0;"),
            Kind::Nullable { is_bool, .. } => {
                let (value, its_value) = (at + front, its + before);
                let copy = if is_bool {
                    format!("{to}[{value}] = {from}[{its_value}] != 0")
                } else {
                    format!("__builtin_memcpy({to} + {value}, {from} + {its_value}, {len})")
                };
                writeln!(
                    out,
                    "    __builtin_memset({to} + {at}, 0, {});\n    if ({from}[{its}] != 0) {{\n        {to}[{at}] = 1;\n        \
                     {copy};\n    }}",
                    front + len
                )
            }
        };
    }
}

/// A member of the struct; a nullable is a struct of its own.
fn declaration(member: &Member) -> String {
    let kind = match member.scalar {
        Scalar::Bool | Scalar::U8 | Scalar::Guid => "uint8_t",
        Scalar::I8 => "int8_t",
        Scalar::I16 => "int16_t",
        Scalar::U16 => "uint16_t",
        Scalar::I32 => "int32_t",
        Scalar::U32 => "uint32_t",
        Scalar::I64 => "int64_t",
        Scalar::U64 => "uint64_t",
        Scalar::F32 => "float",
        Scalar::F64 => "double",
    };
    let (name, array) = (c_name(&member.name), if member.scalar == Scalar::Guid { "[16]" } else { "" });
    if member.nullable {
        format!("struct {{ uint8_t present; {kind} value{array}; }} {name}")
    } else {
        format!("{kind} {name}{array}")
    }
}

fn c_name(name: &str) -> String {
    let is_taken = KEYWORDS.contains(&format!(" {name} "));
    format!("{name}{}", if is_taken { "_" } else { "" })
}
