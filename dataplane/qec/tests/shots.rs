//! Stim's formats of shots.

use berth_qec::{
    BitsError,
    shots::{Bits, Format, Found, Reader, Writer},
};
use proptest::prelude::*;

fn read(file: &[u8], format: Format, width: usize) -> Result<Vec<Vec<u8>>, String> {
    read_in_pieces(file, format, width, usize::MAX)
}

/// Reads a file of which `piece` more bytes are there whenever they are asked for.
fn read_in_pieces(file: &[u8], format: Format, width: usize, piece: usize) -> Result<Vec<Vec<u8>>, String> {
    let mut reader = Reader::new(format, Bits::Detectors, width);
    let (mut rows, mut row) = (Vec::new(), vec![0xFF; width.div_ceil(8)]);
    let (mut from, mut to) = (0, 0);
    loop {
        let mut rest = &file[from..to];
        let before = rest.len();
        let found = reader.next(&mut rest, to == file.len(), &mut row).map_err(|error| error.to_string())?;
        from += before - rest.len();
        match found {
            Found::Shot => rows.push(row.clone()),
            Found::End => return Ok(rows),
            Found::Part => {
                assert!(to < file.len(), "{format:?} asks for more than the whole file");
                to = to.saturating_add(piece).min(file.len());
            }
        }
    }
}

fn write(rows: &[Vec<u8>], format: Format, bits: Bits, width: usize) -> Vec<u8> {
    let mut writer = Writer::new(format, bits, width);
    for row in rows {
        writer.push(row).unwrap();
    }
    writer.finish().unwrap()
}

#[test]
fn every_format_is_what_stim_writes() {
    // Stim 1.16, write_shot_data_file of the shots 1010000001 and 0000000000.
    let rows = [vec![0b101, 0b10], vec![0, 0]];
    for (format, file) in [
        (Format::Text, &b"1010000001\n0000000000\n"[..]),
        (Format::B8, &[5, 2, 0, 0]),
        (Format::R8, &[0, 1, 6, 0, 10]),
        (Format::Dets, b"shot D0 D2 D9\nshot\n"),
    ] {
        assert_eq!(write(&rows, format, Bits::Detectors, 10), file, "{format:?}");
        assert_eq!(read(file, format, 10).unwrap(), rows, "{format:?}");
    }
    assert_eq!(write(&rows, Format::Dets, Bits::Observables, 10), b"shot L0 L2 L9\nshot\n");
    // A bit of the first, the second and the last of 64 shots.
    let mut rows = vec![vec![0]; 64];
    (rows[0], rows[1], rows[63]) = (vec![1], vec![2], vec![3]);
    let file = [1, 0, 0, 0, 0, 0, 0, 0x80, 2, 0, 0, 0, 0, 0, 0, 0x80];
    assert_eq!(write(&rows, Format::Ptb64, Bits::Detectors, 2), file);
    assert_eq!(read(&file, Format::Ptb64, 2).unwrap(), rows);
}

#[test]
fn mistakes_are_named() {
    for (format, file, error) in [
        (Format::Text, &b"101\n10\n"[..], "shot 1, from byte 4: its line has 2 characters; the model has 3 detectors"),
        (Format::Text, b"1010", "shot 0, from byte 0: its line has 4 characters; the model has 3 detectors"),
        (
            Format::Text,
            b"101010101\n",
            "shot 0, from byte 0: its line has more than 3 characters; the model has 3 detectors",
        ),
        (Format::Text, b"1 1\n", "shot 0, from byte 0: a line has 0 and 1 alone"),
        (Format::B8, &[8], "shot 0, from byte 0: a bit after the model's 3 detectors is set; is it of another model?"),
        (Format::R8, &[4], "shot 0, from byte 0: it has more than the model's 3 detectors"),
        (Format::R8, &[3, 0], "shot 1, from byte 1: the file ends before the last of its 3 detectors"),
        (Format::Dets, b"shot D3\n", "shot 0, from byte 0: \"D3\" is none of D0 to D2"),
        (Format::Dets, b"shot L0\n", "shot 0, from byte 0: \"L0\" is none of D0 to D2"),
        (Format::Dets, b"shot\nD0\n", "shot 1, from byte 5: its line does not begin with \"shot\": \"D0\""),
        (Format::Dets, &[b' '; 200], "shot 0, from byte 0: its line has more than 118 characters"),
        (
            Format::Ptb64,
            &[0; 25],
            "shot 64, from byte 24: the file ends after 1 of the 24 bytes for 3 detectors of 64 shots",
        ),
    ] {
        for piece in [1, 7, usize::MAX] {
            assert_eq!(read_in_pieces(file, format, 3, piece), Err(error.to_owned()), "{piece}");
        }
    }
    let error = "shot 1, from byte 15: the file ends after 7 of its 15 bytes for 120 detectors";
    assert_eq!(read(&[0; 22], Format::B8, 120), Err(error.to_owned()));
    assert_eq!(read(&[0], Format::B8, 0), Err("shot 0, from byte 0: the model has no detectors".to_owned()));
    let mut odd = Writer::new(Format::Ptb64, Bits::Detectors, 3);
    odd.push(&[1]).unwrap();
    assert!(odd.drain().is_empty());
    let error = "ptb64 holds multiples of 64 shots, not 1; choose another format";
    assert_eq!(odd.finish().unwrap_err().to_string(), error);
    assert_eq!(Writer::new(Format::B8, Bits::Detectors, 3).push(&[8]), Err(BitsError::Padding));
    assert!("b9".parse::<Format>().is_err());
    assert_eq!("ptb64".parse(), Ok(Format::Ptb64));
}

proptest! {
    #[test]
    fn what_is_written_is_read(
        width in prop_oneof![1..20usize, 250..270usize, 500..530usize],
        seeds in prop::collection::vec(prop::collection::vec(any::<u8>(), 70), 0..5),
        sparse in any::<bool>(),
        piece in 1..2000usize,
    ) {
        let row = |seed: &Vec<u8>| -> Vec<u8> {
            let mut row: Vec<u8> = (0..width.div_ceil(8)).map(|at| if sparse && at % 40 > 0 { 0 } else { seed[at] }).collect();
            if width % 8 > 0 {
                row[width / 8] &= (1 << (width % 8)) - 1;
            }
            row
        };
        let rows: Vec<_> = seeds.iter().map(row).collect();
        for (_, format) in Format::ALL {
            let repeats = if format == Format::Ptb64 { 64 } else { 1 };
            let rows: Vec<_> = (0..repeats).flat_map(|_| rows.clone()).collect();
            let file = write(&rows, format, Bits::Detectors, width);
            prop_assert_eq!(read_in_pieces(&file, format, width, piece).unwrap(), rows);
        }
    }

    #[test]
    fn no_bytes_panic(file in prop::collection::vec(any::<u8>(), 0..300), width in 0..600usize) {
        for (_, format) in Format::ALL {
            prop_assert_eq!(read(&file, format, width), read_in_pieces(&file, format, width, 1));
        }
    }
}
