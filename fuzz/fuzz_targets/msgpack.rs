//! Any bytes are a value or an error; what is read as a value is written again to the same value, and skipping it ends
//! where reading it ends.
#![no_main]

use cord::iproto::mp::{self, Family, MpError, Reader};
use libfuzzer_sys::fuzz_target;

/// Reads a value with the typed readers and writes it in its shortest form. `depth` bounds the recursion of this test,
/// not of the reader, which has none.
fn rewrite(reader: &mut Reader<'_>, out: &mut Vec<u8>, depth: u32) -> Result<(), MpError> {
    if depth == 0 {
        out.extend_from_slice(reader.raw()?);
        return Ok(());
    }
    match reader.peek()? {
        Family::Nil => reader.read_nil().map(|()| mp::put_nil(out)),
        Family::Bool => reader.read_bool().map(|v| mp::put_bool(out, v)),
        Family::Uint => reader.read_uint().map(|v| mp::put_uint(out, v)),
        Family::Int => {
            let number = reader.read_integer()?;
            let number = i64::try_from(number).expect("an integer of 64 bits");
            mp::put_int(out, number);
            Ok(())
        }
        Family::Float => {
            let bytes = reader.raw()?;
            out.extend_from_slice(bytes);
            Ok(())
        }
        Family::Double => {
            let bytes = reader.raw()?;
            out.extend_from_slice(bytes);
            Ok(())
        }
        Family::Str => reader.read_str().map(|v| mp::put_str(out, v)),
        Family::Bin => reader.read_bin().map(|v| {
            mp::put_bin_len(out, v.len() as u32);
            out.extend_from_slice(v);
        }),
        Family::Array => {
            let len = reader.read_array()?;
            mp::put_array(out, len);
            (0..len).try_for_each(|_| rewrite(reader, out, depth - 1))
        }
        Family::Map => {
            let len = reader.read_map()?;
            mp::put_map(out, len);
            (0..2 * u64::from(len)).try_for_each(|_| rewrite(reader, out, depth - 1))
        }
        Family::Ext => reader.read_ext().map(|(kind, v)| {
            mp::put_ext_len(out, kind, v.len() as u32);
            out.extend_from_slice(v);
        }),
    }
}

fuzz_target!(|bytes: &[u8]| {
    let mut skipped = Reader::new(bytes);
    let skip = skipped.skip();
    let mut reader = Reader::new(bytes);
    let mut out = Vec::new();
    let read = rewrite(&mut reader, &mut out, 100);
    assert_eq!(read.is_ok(), skip.is_ok());
    if read.is_err() {
        return;
    }
    assert_eq!(reader.position(), skipped.position());
    assert!(out.len() <= reader.position(), "the shortest form is no longer");
    // Once more: the shortest form is read to itself.
    let mut again = Vec::new();
    let mut reader = Reader::new(&out);
    assert_eq!(rewrite(&mut reader, &mut again, 100), Ok(()));
    assert!(reader.is_empty());
    assert_eq!(again, out);
});
