//! What SGLang, vLLM, llama.cpp and Outrider call things, by version.
