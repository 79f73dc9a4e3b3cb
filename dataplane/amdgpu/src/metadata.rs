//! The metadata of a code object: MessagePack, of which the kernels and their arguments are read.

use rmp_serde::Deserializer;
use serde::Deserialize;

use crate::Error;

/// Most parameters that a kernel may have.
pub const PARAMETERS_MAX: usize = 64;

/// How deep maps and lists may lie in each other. Those of compilers take six.
const DEPTH: usize = 16;

/// Most kernels of a code object.
const KERNELS_MAX: usize = 4096;

/// A kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kernel {
    /// Its name, for which drivers are asked.
    pub name: String,
    /// Offset and size of each parameter in the argument buffer, without those that the driver adds; at most
    /// [`PARAMETERS_MAX`].
    pub parameters: Vec<(u32, u32)>,
}

#[derive(Deserialize)]
struct Metadata<'a> {
    #[serde(rename = "amdhsa.target")]
    target: Option<&'a str>,
    #[serde(rename = "amdhsa.kernels", borrow, default)]
    kernels: Vec<Described<'a>>,
}

#[derive(Deserialize)]
struct Described<'a> {
    #[serde(rename = ".name")]
    name: &'a str,
    #[serde(rename = ".kernarg_segment_size")]
    segment: u32,
    #[serde(rename = ".args", borrow, default)]
    arguments: Vec<Argument<'a>>,
}

#[derive(Deserialize)]
struct Argument<'a> {
    #[serde(rename = ".offset")]
    offset: u32,
    #[serde(rename = ".size")]
    size: u32,
    #[serde(rename = ".value_kind")]
    kind: &'a str,
}

/// The target that the code is for, if that is told, and its kernels.
pub(crate) fn read(note: &[u8]) -> Result<(Option<&str>, Vec<Kernel>), Error> {
    let mut reader = Deserializer::from_read_ref(note);
    reader.set_max_depth(DEPTH);
    let read = Metadata::deserialize(&mut reader);
    let Metadata { target, kernels } = read.map_err(|_| Error::Broken("metadata that are damaged"))?;
    if kernels.len() > KERNELS_MAX {
        return Err(Error::Refused("more than 4096 kernels"));
    }
    Ok((target, kernels.into_iter().map(kernel).collect::<Result<_, _>>()?))
}

fn kernel(Described { name, segment, arguments }: Described<'_>) -> Result<Kernel, Error> {
    // Hidden ones are the driver's to fill in.
    let own = arguments.iter().filter(|argument| !argument.kind.starts_with("hidden_"));
    let parameters: Vec<_> = own.map(|Argument { offset, size, .. }| (*offset, *size)).collect();
    if parameters.len() > PARAMETERS_MAX {
        return Err(Error::Refused("a kernel of more than 64 parameters"));
    }
    let is_within = |(offset, size): &(u32, u32)| offset.checked_add(*size).is_some_and(|end| end <= segment);
    if !parameters.iter().all(is_within) {
        return Err(Error::Broken("a parameter that is not within its kernel's arguments"));
    }
    Ok(Kernel { name: name.to_owned(), parameters })
}
