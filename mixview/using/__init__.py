"""What an encoder is for once it is learned: features of images, and the images that are alike."""
