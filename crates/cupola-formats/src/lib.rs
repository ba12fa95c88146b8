//! Checkpoints on disk to typed views: GGUF, safetensors, Hugging Face configs, tokenizers, chat templates.
