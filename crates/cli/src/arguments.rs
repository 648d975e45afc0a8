//! The arguments of a server as data: for the log line that other tools read, and `/server_info`.

use serde_json::{Map, Value, json};

use crate::flags::{Algorithm, Quantization, ServeFlags, Steps};

/// The flags under the names that SGLang gives its arguments; secrets are left out.
pub(crate) fn of(flags: &ServeFlags) -> Map<String, Value> {
    let (pools, spec) = (&flags.pools, &flags.speculation);
    let value = json!({
        "model_path": flags.model.name(),
        "served_model_name": flags.served_model_name.as_deref().unwrap_or(flags.model.name()),
        "host": flags.host,
        "port": flags.port,
        "api_key": flags.api_key.as_ref().map(|_| "******"),
        "threads": flags.model.threads,
        "quantization": flags.model.quantization.map(Quantization::name),
        "context_length": pools.context_length,
        "mem_fraction_static": pools.mem_fraction_static,
        "max_running_requests": pools.max_running_requests,
        "max_queued_requests": pools.max_queued_requests,
        "max_total_tokens": pools.max_total_tokens,
        "chunked_prefill_size": pools.chunked_prefill_size,
        "mamba_full_memory_ratio": pools.mamba_full_memory_ratio,
        "max_mamba_cache_size": pools.max_mamba_cache_size,
        "kv_cache_dtype": pools.kv_cache_dtype.kv_type().map_or("auto", plan::KvType::sglang_name),
        "disable_radix_cache": pools.disable_radix_cache,
        "mamba_track_interval": pools.mamba_track_interval,
        "speculative_algorithm": spec.speculative_algorithm.map(|algorithm| match algorithm {
            Algorithm::Nextn => "NEXTN",
            Algorithm::None => "none",
        }),
        "speculative_num_steps": spec.speculative_num_steps.map(|steps| match steps {
            Steps::Auto => json!("auto"),
            Steps::Fixed(n) => json!(n),
        }),
        "speculative_eagle_topk": spec.speculative_eagle_topk,
        "speculative_num_draft_tokens": spec.speculative_num_draft_tokens,
        "least_pass_ms": flags.least_pass_ms,
        "decode_log_interval": flags.decode_log_interval,
        "log_level": flags.log_level,
    });
    match value {
        Value::Object(map) => map,
        _ => unreachable!("the literal above is an object"),
    }
}

/// `server_args=ServerArgs(name=value, …)`, as SGLang prints it: values as Python writes them.
pub(crate) fn log_line(arguments: &Map<String, Value>) -> String {
    let python = |value: &Value| match value {
        Value::Null => "None".to_owned(),
        Value::Bool(true) => "True".to_owned(),
        Value::Bool(false) => "False".to_owned(),
        Value::String(text) => format!("'{}'", text.replace('\\', "\\\\").replace('\'', "\\'")),
        other => other.to_string(),
    };
    let fields: Vec<String> =
        arguments.iter().map(|(name, value)| format!("{name}={}", python(value))).collect();
    format!("server_args=ServerArgs({})", fields.join(", "))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::flags::{Cli, Command};

    fn parsed(line: &str) -> Map<String, Value> {
        let words = std::iter::once("outrider").chain(line.split(' '));
        match Cli::parse_from(words).command {
            Command::Serve(flags) => of(&flags),
            _ => panic!("not a serve command"),
        }
    }

    #[test]
    fn the_log_line_is_python_and_has_no_secret() {
        let line = log_line(&parsed("serve it's --api-key hush --speculative-num-steps auto"));
        assert!(line.starts_with("server_args=ServerArgs(model_path='it\\'s', "), "{line}");
        assert!(line.contains("speculative_num_steps='auto'"), "{line}");
        assert!(line.contains("context_length=None"), "{line}");
        assert!(!line.contains("hush"), "{line}");
    }

    #[test]
    fn kv_types_of_other_devices_are_refused_beside_what_there_is() {
        for kv_type in ["fp8_e5m2", "fp8_e4m3", "fp8", "float16"] {
            let line = ["outrider", "serve", "--kv-cache-dtype", kv_type];
            let Err(error) = Cli::try_parse_from(line) else { panic!("{kv_type} was taken") };
            let error = error.to_string();
            assert!(error.contains(kv_type) && error.contains("int8"), "{error}");
        }
        assert_eq!(parsed("serve M --kv-cache-dtype int8")["kv_cache_dtype"], "int8");
    }

    #[test]
    fn the_old_unit_files_flags_are_understood() {
        let map = parsed(
            "serve M --speculative-algorithm NEXTN --speculative-num-steps 3 \
             --speculative-num-draft-tokens 4 --mem-fraction-static 0.88 --context-length 131072 \
             --max-running-requests 16 --mamba-full-memory-ratio 0.5 --quantization w8a8_int8",
        );
        assert_eq!(map["speculative_algorithm"], "NEXTN");
        assert_eq!(map["speculative_num_steps"], 3);
        assert_eq!(map["max_running_requests"], 16);
        assert_eq!(map["quantization"], "int8");
    }
}
