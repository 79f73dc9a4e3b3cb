//! A schema as the host API lays it out, then a payload: values partition what the schema accepts.
#![no_main]

use berth_wire::rpc::HandlerSchema;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some((schema, payload)) = bytes.split_first_chunk() else { return };
    let Ok(schema) = HandlerSchema::from_bytes(schema) else { return };
    assert_eq!(HandlerSchema::from_bytes(&schema.to_bytes()), Ok(schema));
    for values in
        [schema.read_args(payload).map(Iterator::collect), schema.read_results(payload).map(Iterator::collect)]
    {
        let values: Vec<_> = match values {
            Ok(values) => values,
            Err(_) => continue,
        };
        let (mut again, mut at) = (vec![0; payload.len()], 0);
        for value in values {
            at += value.write(&mut again[at..]).expect("values fit where they came from");
        }
        assert_eq!((at, &again[..]), (payload.len(), payload));
    }
});
