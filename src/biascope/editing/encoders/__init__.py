"""Pre-trained encoders: one file per architecture, under the names its published checkpoints use, and what prepares inputs.

The weights of a checkpoint fit these modules by name, so that weights fine-tuned elsewhere can be read, compared and merged
here, and what is written here loads there. All layers are plain operations, so that every derivative can be taken.

| file | architecture | inputs | features |
|---|---|---|---|
| efficientnet_lite0 | EfficientNet-Lite0 | images | pooled, 1280 |
| bert | BERT (MiniLM-L6) | word pieces | mean over tokens, 384 |
| clip_vision | image tower of CLIP, a vision transformer | images | embedding |
| t5 | encoder of T5 | pieces of text | mean over tokens |
"""
