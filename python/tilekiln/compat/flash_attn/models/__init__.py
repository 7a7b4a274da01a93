# SPDX-License-Identifier: MIT
"""flash_attn.models: GPT, BERT and ViT of flash_attn.modules, and names and configs of checkpoints that these take."""
