"""Pre-trained encoders: the modules of their libraries, read as features, and what prepares their inputs.

Weights have the names that the library gives them, so that weights fine-tuned elsewhere can be read, compared and merged here, and
what is written here loads there.

| file | architecture | library | inputs | features |
|---|---|---|---|---|
| efficientnet_lite | EfficientNet-Lite0 and 2 | efficientnet-lite-pytorch | images | pooled, 1280 |
| texts | BERT (MiniLM-L6), T5 and others | transformers | token ids | mean over tokens |
| clip_tower | image tower of CLIP | open_clip | images | embedding |
"""
